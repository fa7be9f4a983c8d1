package process_test

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/process"
	"execserver/protocol"
)

// undying is a process that takes as long to die as a test wants.
type undying struct {
	killed  chan struct{} // closed when somebody has killed it
	release func()        // lets it die
}

// hold makes a process undying, as one is that waits for a file system which does
// not answer.
func hold(t *testing.T, pid int) *undying {
	t.Helper()
	released := make(chan struct{})
	u := &undying{killed: make(chan struct{}), release: sync.OnceFunc(func() { close(released) })}
	held, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // which traces it, and ends with this goroutine
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			held <- errno
			return
		}
		held <- nil
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err == nil && status.Stopped() {
			close(u.killed) // it is about to end
			<-released
			_ = unix.PtraceDetach(pid)
		}
	}()
	if err := <-held; err != nil {
		t.Skipf("processes cannot be traced here: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		u.release()
		<-done
	})
	return u
}

func (u *undying) awaitKill(t *testing.T) {
	t.Helper()
	select {
	case <-u.killed:
	case <-time.After(testTimeout):
		t.Fatal("the process was not killed")
	}
}

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
func ownedUndying(t *testing.T, o *process.Ownership) {
	for _, kept := range []bool{false, true} {
		w := newOwner(t, o)
		spec := child("daemon", newWord(), "stay")
		spec.KeepDescendants = kept
		p, pid := startDaemon(t, w, spec)
		u := hold(t, pid)
		p.Terminate()
		u.awaitKill(t)
		follow(t, p)
		var others []*process.Process
		var pids []int
		for range 40 {
			other := start(t, child("idle"), &process.Options{Owner: w})
			others, pids = append(others, other), append(pids, other.Pid())
		}
		stayAlive(t, pids...)
		u.release()
		gone(t, pid)
		for _, other := range others {
			other.Terminate()
			if s := follow(t, other); s.exit.EndedBy != protocol.EndedByClient {
				t.Errorf("kept=%v: a process was ended by %q before the client did it", kept, s.exit.EndedBy)
			}
		}
	}
}

// ownedNextSession: what is killed at the end of the last session is its own. What
// belongs to a session that begins meanwhile is left alone.
func ownedNextSession(t *testing.T, o *process.Ownership) {
	last := o.NewOwner()
	closed, pid := daemon(t, last, newWord())
	follow(t, closed)
	u := hold(t, pid)
	ended := make(chan struct{})
	go func() {
		last.End(protocol.EndedBySessionExpired)
		last.Wait()
		close(ended)
	}()
	u.awaitKill(t)
	next := newOwner(t, o)
	closed, daemonOfNext := daemon(t, next, newWord())
	follow(t, closed)
	stayAlive(t, daemonOfNext)
	u.release()
	<-ended
	stayAlive(t, daemonOfNext)
	gone(t, pid)
}
