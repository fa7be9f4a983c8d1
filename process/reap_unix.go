//go:build unix

package process

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
	"execserver/protocol"
)

// reaped is what the system tells about a leader that has ended.
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

// told is what the system has told, as wait returns it.
func (r *reaped) told() (syscall.WaitStatus, *protocol.Rusage, bool) {
	return r.status, &protocol.Rusage{
		UserMs:      time.Duration(r.usage.Utime.Nano()).Milliseconds(),
		SystemMs:    time.Duration(r.usage.Stime.Nano()).Milliseconds(),
		MaxRSSBytes: maxRSS(r.usage.Maxrss),
	}, r.known
}

// signalName is the name of a signal, such as SIGKILL.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return unnamedSignal(sig)
}

// poll calls done until it is true, for kernels that do not tell.
func poll(done func() bool) {
	for pause := time.Millisecond; !done(); pause = min(2*pause, 20*time.Millisecond) {
		time.Sleep(pause)
	}
}
