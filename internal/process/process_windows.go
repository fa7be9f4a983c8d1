package process

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"execserver/internal/ownership"
	"execserver/protocol"
)

// exitNotice is the handle that becomes ready when the child has ended.
type exitNotice struct {
	process *os.Process
}

// spawn starts a child.
func spawn(c command, _ *ownership.Tree) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	defer ours.closeTheirs(theirs)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its streams", Err: errnoOf(err)}
	}
	attr := &os.ProcAttr{Dir: c.dir, Env: c.env, Files: theirs}
	ours.exit.process, err = os.StartProcess(c.path, c.argv, attr)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: execReason(c, err), Err: errnoOf(err)}
	}
	ours.pid = ours.exit.process.Pid
	ours.group = ours.pid
	return ours, nil
}

// wait waits for the child. Its id stays ours while the handle is open, so
// nothing has to be locked.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	state, err := c.exit.process.Wait()
	locked(func() bool { return true })
	if err != nil {
		return syscall.WaitStatus{}, nil, false
	}
	usage := &protocol.Rusage{UserMs: state.UserTime().Milliseconds(), SystemMs: state.SystemTime().Milliseconds()}
	return state.Sys().(syscall.WaitStatus), usage, true
}

// signalGroup ends the child on SIGKILL, unless it has been waited for, and reports that.
// There are no groups and no other signals.
func (p *Process) signalGroup(sig syscall.Signal) (held bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped || sig != syscall.SIGKILL {
		return !p.reaped, nil
	}
	process, err := os.FindProcess(p.pid)
	if err != nil {
		return true, err
	}
	defer func() { _ = process.Release() }()
	return true, process.Kill()
}

func signalName(sig syscall.Signal) string { return unnamedSignal(sig) }

// Signals says whether processes here can be sent every signal.
const Signals = false

// SignalNumber returns the signal of a name such as "SIGTERM", 0 when there is
// none here. SIGINT does nothing: it cannot reach a process without a console of
// its own.
func SignalNumber(name string) syscall.Signal {
	switch name {
	case "SIGINT":
		return syscall.SIGINT
	case "SIGKILL":
		return syscall.SIGKILL
	}
	return 0
}

// sigCont is not known here, and does nothing.
const sigCont = syscall.Signal(0)

// drainGrace is how long output may come after the end of the child and still
// be numbered before it; a pipe cannot be asked here.
const drainGrace = 50 * time.Millisecond

// interrupt tells the reader what is wanted; reads cannot be interrupted.
func (s *stream) interrupt(order int32) {
	s.order.Store(order)
	if order == orderFinish {
		_ = s.file.Close()
		return
	}
	time.AfterFunc(drainGrace, s.markDrained)
}

func (s *stream) read(room int) (n int, interrupted bool, err error) {
	n, err = s.file.Read(s.to.Buffer(room))
	return n, false, err
}

func (s *stream) readNow(int) (int, error) { return 0, io.EOF }

func (s *stream) held() int { return 0 }

// pending does not know; a pipe cannot be asked here.
func (s *stream) pending() bool { return false }

// writeAvailable leaves everything to the goroutine that may block.
func writeAvailable(*os.File, []byte) (int, error) { return 0, nil }

func searchPath(env map[string]string) (list string, ok bool) {
	for name, value := range env {
		if strings.EqualFold(name, "PATH") {
			return value, true
		}
	}
	return "", false
}

// executable finds the file that path, relative to dir unless absolute, means
// with the usual extensions.
func executable(path, dir string) (string, error) {
	found, err := exec.LookPath(filepath.Clean(absolute(path, dir)))
	if err != nil {
		return "", syscall.ENOENT
	}
	return found, nil
}

// mayEnter checks nothing: the system's error for a directory says enough.
func mayEnter(string) error { return nil }
