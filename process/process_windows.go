package process

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// exitNotice is the handle that tells when the child has ended.
type exitNotice struct {
	process *os.Process
}

// spawn starts a child.
func spawn(c command) (*child, error) {
	ours, theirs, err := makeStreams(c.spec)
	for _, f := range theirs {
		defer f.Close()
	}
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "its streams", Err: reason(err)}
	}
	attr := &os.ProcAttr{Dir: c.dir, Env: c.env, Files: theirs}
	ours.exit.process, err = os.StartProcess(c.path, c.argv, attr)
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: execReason(c, err), Err: reason(err)}
	}
	ours.pid = ours.exit.process.Pid
	return ours, nil
}

// wait waits for the child. Its id stays ours while the handle is open, so
// nothing has to be locked.
func (c *child) wait(locked func(reap func() bool) bool) (status syscall.WaitStatus) {
	state, err := c.exit.process.Wait()
	locked(func() bool { return true })
	if err != nil {
		return syscall.WaitStatus{ExitCode: ^uint32(0)}
	}
	return state.Sys().(syscall.WaitStatus)
}

// killGroupLocked ends the child; there are no groups and no other signals.
func (p *Process) killGroupLocked(sig syscall.Signal) error {
	if p.reaped || sig != syscall.SIGKILL {
		return nil
	}
	process, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }()
	return process.Kill()
}

func (p *Process) groupKnownLocked() bool { return !p.reaped }

// Group is what may be left of a closed process; here nothing is known of it.
type Group int

// Leftover returns 0.
func (p *Process) Leftover() Group { return 0 }

// Alive reports false.
func (g Group) Alive() bool { return false }

// Kill does nothing.
func (g Group) Kill() {}

// Interrupt cannot reach a process without a console of its own.
func (p *Process) Interrupt() error { return nil }

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
	n, err = s.file.Read(s.buffer(room))
	return n, false, err
}

func (s *stream) readNow(int) (int, error) { return 0, io.EOF }

func (s *stream) held() int { return 0 }

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

// executable finds the file that path means, with the usual extensions.
func executable(path string) (string, error) {
	found, err := exec.LookPath(filepath.Clean(path))
	if err != nil {
		return "", syscall.ENOENT
	}
	return found, nil
}
