//go:build unix

package process

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
	"execserver/protocol"
)

// reaped is the system's report about a leader that has ended.
type reaped struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
	known  bool // somebody else may have waited for it
}

// reaper returns a function that reaps the leader if it has ended, without
// waiting.
func (c *child) reaper(r *reaped) func() bool {
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

// result returns the report as wait does.
func (r *reaped) result() (syscall.WaitStatus, *protocol.Rusage, bool) {
	return r.status, &protocol.Rusage{
		UserMs:      time.Duration(r.usage.Utime.Nano()).Milliseconds(),
		SystemMs:    time.Duration(r.usage.Stime.Nano()).Milliseconds(),
		MaxRSSBytes: maxRSS(r.usage.Maxrss),
	}, r.known
}

// signalName returns the name of a signal, such as SIGKILL.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return unnamedSignal(sig)
}

// poll calls done until it returns true, on kernels that do not notify.
func poll(done func() bool) {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 20*time.Millisecond) {
		time.Sleep(pause)
	}
}
