package process

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
	"execserver/internal/sys"
	"execserver/protocol"
)

const ioctlReadable = unix.TIOCINQ

// exitNotice tells when the leader has ended.
type exitNotice struct {
	pidfd *os.File // in the poller; nil when the kernel has none
}

// maxSpawns is how often a child is started whose sandbox cannot be made because
// something is moved meanwhile.
const maxSpawns = 20

// spawn starts a child as the leader of a session of its own.
func spawn(c command, t *tree) (ours *child, err error) {
	for range maxSpawns {
		ours, err = spawnOnce(c, t)
		if failure, ok := errors.AsType[*launcher.Failure](err); !ok || failure.Stage != launcher.StageMoved {
			break
		}
	}
	return ours, err
}

func spawnOnce(c command, t *tree) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	for _, f := range theirs {
		defer f.Close()
	}
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its streams", Err: reason(err)}
	}
	path, argv := c.path, c.argv
	attr := &syscall.ProcAttr{
		Dir: c.dir,
		Env: c.env,
		Sys: &syscall.SysProcAttr{
			Setsid:    true,
			Setctty:   c.spec.TTY, // of descriptor 0
			Pdeathsig: syscall.SIGTERM,
		},
	}
	if t.group != nil {
		group, err := t.group.Open()
		if err != nil {
			ours.close()
			return nil, &Error{Program: c.spec.Argv[0], Reason: "its control group", Err: reason(err)}
		}
		defer group.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(group.Fd())
	}
	files, err := ours.confine(c, attr, &path, &argv)
	if err != nil {
		ours.close()
		return nil, err
	}
	dir := c.spec.DirFile
	if ours.launch != nil { // which looks where it is
		dir = nil
	}
	ours.pid, err = theSpawner.start(path, argv, attr, append(theirs, files...), dir, t.mark)
	if err != nil {
		err = ours.explain(c, err)
		ours.release()
		ours.close()
		return nil, err
	}
	ours.group = ours.pid
	running := false
	defer func() {
		if !running { // also after a panic
			ours.discard()
		}
	}()
	t.owner.ownership.restoreOOMScore(ours.pid) // before a launcher starts the program
	if err := ours.awaitStart(c); err != nil {
		return nil, err
	}
	if pidfd, err := sys.PidfdOpen(ours.pid, 0); err == nil {
		// Only a descriptor that does not block gets into the poller.
		_ = sys.SetNonblock(pidfd, true)
		ours.exit.pidfd = sys.NewFile(uintptr(pidfd), "pidfd")
	}
	running = true
	return ours, nil
}

// discard ends a child that nobody waits for yet.
func (c *child) discard() {
	_ = sys.Kill(-c.pid, syscall.SIGKILL) // it may have ended
	for {
		if _, err := sys.Wait4(c.pid, nil, 0, nil); err != syscall.EINTR {
			break
		}
	}
	c.release()
	c.close()
}

// wait waits for the leader without a thread and reaps it. locked runs the
// reaping, which may find that it is too early, such that nobody signals the
// process id meanwhile.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	var r reaped
	reap := c.reaper(&r)
	if c.exit.pidfd == nil {
		poll(func() bool { return locked(reap) })
		return r.told()
	}
	defer c.exit.pidfd.Close()
	raw, err := c.exit.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(uintptr) bool { return locked(reap) })
	}
	if err != nil {
		poll(func() bool { return locked(reap) })
	}
	return r.told()
}
