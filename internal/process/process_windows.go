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

// leaderHandle becomes ready when the child has exited.
type leaderHandle struct {
	process *os.Process
}

// spawn starts a child.
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
	attr := &os.ProcAttr{Dir: c.dir, Env: c.env, Files: childFiles}
	ours.handle.process, err = os.StartProcess(c.path, c.argv, attr)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: execReason(c.path, err), Err: errnoOf(err)}
	}
	ours.pid = ours.handle.process.Pid
	ours.group = ours.pid
	return ours, nil
}

// wait waits for the child. The pid is not reused while the handle is open, so locked has
// nothing to protect.
func (c *child) wait(locked func(reap func() bool) bool) (syscall.WaitStatus, *protocol.Rusage, bool) {
	state, err := c.handle.process.Wait()
	locked(func() bool { return true })
	if err != nil {
		return syscall.WaitStatus{}, nil, false
	}
	usage := &protocol.Rusage{UserMs: state.UserTime().Milliseconds(), SystemMs: state.SystemTime().Milliseconds()}
	return state.Sys().(syscall.WaitStatus), usage, true
}

// signalGroup kills the child on SIGKILL and ignores other signals: Windows has no process
// groups. It reports whether the child has not been waited for.
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

// Signals reports whether processes on this system can be sent any signal.
const Signals = false

// SignalNumber returns the signal with a name such as "SIGTERM", or 0 if this system has
// none. SIGINT has no effect: it cannot reach a process without a console of its own.
func SignalNumber(name string) syscall.Signal {
	switch name {
	case "SIGINT":
		return syscall.SIGINT
	case "SIGKILL":
		return syscall.SIGKILL
	}
	return 0
}

// sigCont does not exist on Windows; sending it does nothing.
const sigCont = syscall.Signal(0)

// drainGrace is how long after the child's exit its output is still waited for, because the
// fill level of a pipe cannot be queried.
const drainGrace = 50 * time.Millisecond

// interrupt sets the mode. Reads cannot be interrupted.
func (s *stream) interrupt(mode int32) {
	s.mode.Store(mode)
	if mode == modeFinish {
		_ = s.file.Close()
		return
	}
	time.AfterFunc(drainGrace, s.markDrained)
}

func (s *stream) read(max int) (n int, interrupted bool, err error) {
	n, err = s.file.Read(s.writer.Buffer(max))
	return n, false, err
}

func (s *stream) readNow(int) (int, error) { return 0, io.EOF }

func (s *stream) buffered() int { return 0 }

// pending returns false: the fill level of a pipe cannot be queried.
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

// checkExecutable finds the file for path, relative to dir unless absolute, with the usual
// extensions.
func checkExecutable(path, dir string) (string, error) {
	found, err := exec.LookPath(filepath.Clean(absolute(path, dir)))
	if err != nil {
		return "", syscall.ENOENT
	}
	return found, nil
}

// checkSearchable checks nothing: the system's error already names the directory.
func checkSearchable(string) error { return nil }
