//go:build unix && !linux

package process

import (
	"syscall"

	"execserver/protocol"
)

// exitNotice tells when the leader has ended; here nothing does.
type exitNotice struct{}

// spawn starts a child as the leader of a session of its own.
func spawn(c command, _ *tree) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	for _, f := range theirs {
		defer f.Close()
	}
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its streams", Err: reason(err)}
	}
	attr := &syscall.ProcAttr{Dir: c.dir, Env: c.env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, f := range theirs {
		attr.Files = append(attr.Files, f.Fd())
	}
	ours.pid, err = syscall.ForkExec(c.path, c.argv, attr)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: execReason(c, err), Err: err}
	}
	ours.group = ours.pid
	return ours, nil
}

// wait waits for the leader and reaps it. locked runs the reaping, which may
// find that it is too early, such that nobody signals the process id meanwhile.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	var r reaped
	reap := c.reaper(&r)
	poll(func() bool { return locked(reap) })
	return r.told()
}
