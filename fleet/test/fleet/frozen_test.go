//go:build linux

package fleet

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestFrozenGateway stops a gateway for longer than the silence after which a machine gives
// a connection up, as if the network between them were cut without a word. Nothing is lost
// or doubled when it continues.
func TestFrozenGateway(t *testing.T) {
	t.Parallel()
	interrupt(t, func(n *node) {
		if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGatewayStartsAgain kills the only gateway and starts it again, which takes the list of
// machines with it.
func TestGatewayStartsAgain(t *testing.T) {
	interrupt(t, func(n *node) {
		n.kill(t)
		n.start(t)
		listed(t, n, 1)
	})
}

// interrupt runs sessions through a gateway, and interrupts it.
func interrupt(t *testing.T, with func(*node)) {
	n := gateway(t)
	join(t, []*node{n}, "box")
	var recovered atomic.Pointer[outages]
	recovered.Store(new(outages))
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	var wg sync.WaitGroup
	const sessions = 5
	for i := range sessions {
		wg.Go(func() {
			if err := runSession(t, "ws://"+n.client+"/env/box", &recovered, over); err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	t.Cleanup(func() { // also if the test fails
		end()
		wg.Wait()
	})
	recovered.Load().allStream(t, sessions)
	with(n)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if len(recovered.Load().sorted()) < sessions {
			return errNotYet
		}
		return nil
	})
	end()
	testkit.Within(t, "the end of the sessions", wg.Wait)
	all := recovered.Load().sorted()
	t.Logf("%d recoveries, the longest in %v", len(all), all[len(all)-1])
}
