package process

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const ioctlReadable = unix.TIOCINQ

// child is what spawn has made: the leader, and our ends of its streams.
type child struct {
	pid     int
	pidfd   *os.File // in the poller; nil when the kernel has none
	master  *os.File // of the terminal, or nil
	stdin   *os.File // the master, a pipe, or nil
	outputs []namedFile
}

type namedFile struct {
	name string
	file *os.File
}

// spawnThread runs functions on one thread that never ends: the kernel sends
// the parent-death signal when the thread that made a child ends, not the
// process.
var spawnThread = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range calls {
			f()
		}
	}()
	return calls
})

// spawn starts a child as the leader of a session of its own.
func spawn(c command) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	for _, f := range theirs {
		defer f.Close()
	}
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its streams", Err: reason(err)}
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir: c.dir,
		Env: c.env,
		Sys: &syscall.SysProcAttr{
			Setsid:    true,
			Setctty:   c.spec.TTY, // of descriptor 0
			Pdeathsig: syscall.SIGTERM,
			PidFD:     &pidfd,
		},
	}
	for _, f := range theirs {
		attr.Files = append(attr.Files, f.Fd())
	}
	done := make(chan struct{})
	spawnThread() <- func() {
		defer close(done)
		ours.pid, err = syscall.ForkExec(c.path, c.argv, attr)
	}
	<-done
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: execReason(c, err), Err: err}
	}
	if pidfd >= 0 {
		// Only a descriptor that does not block gets into the poller.
		_ = unix.SetNonblock(pidfd, true)
		ours.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	}
	return ours, nil
}

// execReason explains what the errno alone does not: the file was found, so a
// missing file is its interpreter.
func execReason(c command, err error) string {
	if errors.Is(err, syscall.ENOENT) {
		return "the interpreter or loader that " + c.path + " needs"
	}
	return "execute " + c.path
}

// makeStreams makes both ends of the child's streams; theirs are descriptors 0,
// 1 and 2. What is returned with an error is to be closed as well.
func makeStreams(spec Spec) (ours *child, theirs []*os.File, err error) {
	ours = &child{}
	if spec.TTY {
		master, slave, err := openTerminal(defaultSize)
		if err != nil {
			return ours, nil, err
		}
		ours.master, ours.stdin = master, master
		ours.outputs = []namedFile{{"pty", master}}
		return ours, []*os.File{slave, slave, slave}, nil
	}
	var in *os.File
	if spec.PipeStdin {
		in, ours.stdin, err = os.Pipe()
	} else {
		in, err = os.Open(os.DevNull)
	}
	if err != nil {
		return ours, nil, err
	}
	theirs = append(theirs, in)
	for _, name := range []string{"stdout", "stderr"} {
		r, w, err := os.Pipe()
		if err != nil {
			return ours, theirs, err
		}
		theirs = append(theirs, w)
		ours.outputs = append(ours.outputs, namedFile{name, r})
	}
	return ours, theirs, nil
}

func (c *child) close() {
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
	for _, out := range c.outputs {
		_ = out.file.Close()
	}
}

// wait waits for the leader without a thread and reaps it. locked runs the
// reaping, which may find that it is too early, such that nobody signals the
// process id meanwhile.
func (c *child) wait(locked func(reap func() bool) bool) (status syscall.WaitStatus) {
	reap := func() bool {
		for {
			pid, err := syscall.Wait4(c.pid, &status, syscall.WNOHANG, nil)
			if err != syscall.EINTR {
				return pid != 0
			}
		}
	}
	if c.pidfd == nil {
		c.waitByPolling(func() bool { return locked(reap) })
		return status
	}
	defer c.pidfd.Close()
	raw, err := c.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(uintptr) bool { return locked(reap) })
	}
	if err != nil {
		c.waitByPolling(func() bool { return locked(reap) })
	}
	return status
}

// waitByPolling is for kernels without process descriptors.
func (c *child) waitByPolling(reaped func() bool) {
	for pause := time.Millisecond; !reaped(); pause = min(2*pause, 20*time.Millisecond) {
		time.Sleep(pause)
	}
}
