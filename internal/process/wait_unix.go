//go:build unix

package process

import (
	"syscall"
	"time"

	"execserver/internal/sys"
	"execserver/protocol"
)

// waitResult is the result of wait4 for a leader that has exited.
type waitResult struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
	known  bool // false if other code has waited for the leader
}

// waitFunc returns a function that reaps the leader, without blocking, if it has exited.
func (c *child) waitFunc(r *waitResult) func() bool {
	return func() bool {
		for {
			pid, err := sys.Wait4(c.pid, &r.status, syscall.WNOHANG, &r.usage)
			if err != syscall.EINTR {
				r.known = pid == c.pid
				return pid != 0
			}
		}
	}
}

// result returns the results of child.wait.
func (r *waitResult) result() (syscall.WaitStatus, *protocol.Rusage, bool) {
	return r.status, &protocol.Rusage{
		UserMs:      time.Duration(r.usage.Utime.Nano()).Milliseconds(),
		SystemMs:    time.Duration(r.usage.Stime.Nano()).Milliseconds(),
		MaxRSSBytes: maxRSS(r.usage.Maxrss),
	}, r.known
}

// poll calls done until it returns true, for kernels without pidfds.
func poll(done func() bool) {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 20*time.Millisecond) {
		time.Sleep(pause)
	}
}
