//go:build unix

package process

import (
	"syscall"
	"time"
)

// reaper returns a function that reaps the leader if it has ended, without
// waiting.
func (c *child) reaper(status *syscall.WaitStatus) func() bool {
	return func() bool {
		for {
			pid, err := syscall.Wait4(c.pid, status, syscall.WNOHANG, nil)
			if err != syscall.EINTR {
				return pid != 0
			}
		}
	}
}

// poll calls done until it is true, for kernels that do not tell.
func poll(done func() bool) {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 20*time.Millisecond) {
		time.Sleep(pause)
	}
}
