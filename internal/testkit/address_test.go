package testkit

import (
	"errors"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// Nothing listens at a free address, not even a child that was being forked meanwhile.
func TestFreeAddress(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	var forks sync.WaitGroup
	for range 2 {
		forks.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("/nowhere").Run()
					_ = exec.Command("/dev/null").Run()
				}
			}
		})
	}
	defer forks.Wait()
	defer close(stop)
	for range 100 {
		if conn, err := net.Dial("tcp", FreeAddress(t)); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				_ = conn.Close()
			}
			t.Fatalf("dial: %v", err)
		}
	}
}
