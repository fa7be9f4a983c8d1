//go:build unix && !linux

package process

import (
	"syscall"

	"execserver/internal/ownership"
	"execserver/protocol"
)

// exitNotice has no fields: nothing reports here that the leader has ended.
type exitNotice struct{}

// spawn starts a child as the leader of a session of its own.
func spawn(c command, _ *ownership.Tree) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	defer ours.closeTheirs(theirs)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its streams", Err: errnoOf(err)}
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

// wait waits for the leader, and reaps it. locked calls reap under the locks that keep
// everybody from signalling the process id meanwhile. reap returns false if the leader has
// not ended yet.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	var r reaped
	reap := c.reaper(&r)
	poll(func() bool { return locked(reap) })
	return r.result()
}
