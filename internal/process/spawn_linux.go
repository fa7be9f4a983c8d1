package process

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/fault"
	"execserver/internal/ownership"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/sys"
	"execserver/protocol"
)

const ioctlReadable = unix.TIOCINQ

// exitNotice becomes readable when the leader has ended.
type exitNotice struct {
	pidfd   *os.File // in the poller; nil when the kernel has none
	starter *starter // that started the leader
}

// A start that fails for a transient reason is tried up to maxSpawns times.
const (
	maxSpawns  = 20
	spawnPause = 5 * time.Millisecond
)

// spawn starts a child as the leader of a session of its own.
func spawn(c command, t *ownership.Tree) (ours *child, err error) {
	for range maxSpawns {
		ours, err = spawnOnce(c, t)
		failure, ok := errors.AsType[*launcher.Failure](err)
		switch {
		case ok && failure.Stage == launcher.StageMoved: // a file, while the sandbox was being made
		case errors.Is(err, syscall.ETXTBSY):
			// A child that was made while this program wrote the file keeps it open for
			// writing until its own program has been loaded.
			time.Sleep(spawnPause)
		default:
			return ours, err
		}
	}
	return ours, err
}

func spawnOnce(c command, t *ownership.Tree) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	defer ours.closeTheirs(theirs)
	if err != nil {
		ours.close()
		reason := "its streams"
		if errors.Is(err, errUnwatched) {
			reason += ", because programs of this user watch all files that the kernel allows (sysctl fs.epoll.max_user_watches)"
		}
		return nil, &Error{Program: c.spec.Argv[0], Reason: reason, Err: errnoOf(err)}
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
	group, err := t.OpenGroup()
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its control group", Err: errnoOf(err)}
	}
	if group != nil {
		defer group.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(group.Fd())
	}
	files, err := ours.confine(c, attr, &path, &argv)
	if err != nil {
		ours.close()
		return nil, err
	}
	for _, f := range append(theirs, files...) {
		attr.Files = append(attr.Files, f.Fd())
	}
	if dir := c.spec.DirFile; dir != nil && ours.launch == nil { // a launcher goes there itself
		attr.Dir = "/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))
		defer runtime.KeepAlive(dir)
	}
	defer readHeads(path, attr.Dir)()
	err = forkExec(ours, path, argv, attr, t)
	runtime.KeepAlive(files) // theirs are closed later
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
	t.RestoreOOMScore(ours.pid) // before a launcher starts the program
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

// forkExec starts the leader of a tree on a starter's thread.
func forkExec(c *child, path string, argv []string, attr *syscall.ProcAttr, t *ownership.Tree) (err error) {
	if err := fault.At("fork"); err != nil {
		return err
	}
	done := make(chan struct{})
	starts() <- func(s *starter) {
		defer close(done)
		defer t.Mark()()
		err = s.forkExec(c, path, argv, attr)
	}
	<-done
	return err
}

// discard ends a child that nobody waits for yet, reaps it, and frees what it has here.
func (c *child) discard() {
	_ = sys.Kill(-c.pid, syscall.SIGKILL) // it may have ended
	for {
		if _, err := sys.Wait4(c.pid, nil, 0, nil); err != syscall.EINTR {
			break
		}
	}
	c.exit.starter.forget(c)
	c.release()
	c.close()
}

// wait waits for the leader without a thread, and reaps it. locked calls reap under the
// locks that keep everybody from signalling the process id meanwhile. reap returns false
// if the leader has not ended yet.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	var r reaped
	reap := c.reaper(&r)
	defer c.exit.starter.forget(c)
	if c.exit.pidfd == nil {
		poll(func() bool { return locked(reap) })
		return r.result()
	}
	defer c.exit.pidfd.Close()
	raw, err := c.exit.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(uintptr) bool { return locked(reap) })
	}
	if err != nil {
		poll(func() bool { return locked(reap) })
	}
	return r.result()
}
