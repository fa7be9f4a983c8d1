//go:build unix && !linux

package process

import (
	"runtime"
	"syscall"

	"execserver/internal/ownership"
	"execserver/protocol"
)

// leaderHandle has no fields: the leader is polled.
type leaderHandle struct{}

// spawn starts a child as the leader of a session of its own.
func spawn(c command, _ *ownership.Tree) (*child, error) {
	if err := refuseSandbox(c.spec); err != nil {
		return nil, err
	}
	ours, childFiles, err := makeStreams(c.spec)
	defer ours.closeChildFiles(childFiles)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "create its streams", Err: errnoOf(err)}
	}
	attr := &syscall.ProcAttr{Dir: c.dir, Env: c.env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, f := range childFiles {
		attr.Files = append(attr.Files, f.Fd())
	}
	ours.pid, err = syscall.ForkExec(c.path, c.argv, attr)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: execReason(c.path, err), Err: err}
	}
	ours.group = ours.pid
	return ours, nil
}

// wait waits for the leader, and reaps it. locked calls reap with the locks held that keep
// the pid from being signalled meanwhile. reap returns false if the leader is still
// running.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	var r waitResult
	reap := c.waitFunc(&r)
	poll(func() bool { return locked(reap) })
	return r.result()
}

// maxRSS converts a child's peak memory from the system's unit to bytes.
func maxRSS(n int64) int64 {
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return n
	}
	return n << 10
}

// ioctlReadable is FIONREAD, _IOR('f', 127, int) on every BSD and on macOS.
const ioctlReadable = 0x4004667f
