package ownership_test

import (
	"testing"
	"time"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// stayAlive checks for a while, in which a server looks and kills several times,
// that processes live.
func stayAlive(t *testing.T, pids ...int) {
	t.Helper()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, pid := range pids {
			if !testkit.Alive(pid) {
				t.Fatalf("%d is gone, which nobody has killed", pid)
			}
		}
	}
}

// ownedUndying: while a terminated process is killed again and again, because
// something of it does not die, others that have started since are left alone.
func ownedUndying(t *testing.T, o *ownership.Ownership) {
	w := processtest.Owner(t, o)
	p, pid := daemon(t, w, newWord(), "stay")
	u := testkit.Hold(t, pid)
	p.Terminate()
	u.AwaitKill(t)
	processtest.Follow(t, p)
	var others []*process.Process
	var pids []int
	for range 40 {
		other := processtest.Start(t, processtest.Child("idle"), &process.Options{Owner: w})
		others, pids = append(others, other), append(pids, other.Pid())
	}
	stayAlive(t, pids...)
	u.Release()
	testkit.Gone(t, pid)
	for _, other := range others {
		other.Terminate()
		if s := processtest.Follow(t, other); s.Exit.EndedBy != protocol.EndedByClient {
			t.Errorf("a process was ended by %q before the client did it", s.Exit.EndedBy)
		}
	}
}

// ownedNextSession: what is killed at the end of the last session is its own. What
// belongs to a session that begins meanwhile is left alone.
func ownedNextSession(t *testing.T, o *ownership.Ownership) {
	last := o.NewOwner()
	closed, pid := daemon(t, last, newWord())
	processtest.Follow(t, closed)
	u := testkit.Hold(t, pid)
	ended := make(chan struct{})
	go func() {
		last.End(protocol.EndedBySessionExpired)
		last.Wait()
		close(ended)
	}()
	u.AwaitKill(t)
	next := processtest.Owner(t, o)
	closed, daemonOfNext := daemon(t, next, newWord())
	processtest.Follow(t, closed)
	stayAlive(t, daemonOfNext)
	u.Release()
	<-ended
	stayAlive(t, daemonOfNext)
	testkit.Gone(t, pid)
}
