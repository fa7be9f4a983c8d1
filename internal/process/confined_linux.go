package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/sys"
)

// confined holds the sandbox of a child, if it has one. The leader is then a launcher, or a
// launcher that has become the program.
type confined struct {
	confinement *sandbox.Confinement
	launch      *sandbox.Launch
}

// confine changes the arguments of a start so that a launcher is started. It returns the
// launcher's descriptors, which follow those of the streams.
func (c *child) confine(cmd command, attr *syscall.ProcAttr, path *string, argv *[]string) (files []*os.File, err error) {
	if c.confinement, err = cmd.spec.Sandbox(); err != nil {
		return nil, err
	}
	if c.confinement == nil { // never run what was to be confined
		return nil, &sandbox.PolicyError{Err: errors.New("the policy confines nothing")}
	}
	c.launch, err = c.confinement.Launch(sandbox.Command{
		Program: cmd.spec.Argv[0], Argv: cmd.argv, Env: cmd.env, Dir: cmd.dir, DirFile: cmd.spec.DirFile, Terminal: cmd.spec.TTY,
	})
	if err != nil {
		c.releaseSandbox()
		return nil, &sandbox.PolicyError{Err: err}
	}
	*path, *argv = c.launch.Path, c.launch.Args
	attr.Env, attr.Dir = []string{}, "/"
	c.launch.Attributes(attr.Sys)
	// A launcher that becomes the program is itself the session leader.
	attr.Sys.Setctty = cmd.spec.TTY && c.launch.Execs()
	return c.launch.Files, nil
}

// startError returns the error for a failed ForkExec.
func (c *child) startError(cmd command, err error) error {
	if c.launch != nil {
		return &sandbox.PolicyError{Err: sandbox.ExplainStart(err)}
	}
	return &Error{Program: cmd.spec.Argv[0], Reason: execReason(cmd.path, err), Err: err}
}

// waitStarted waits until the launcher has started the program. If that fails, it discards the
// child.
func (c *child) waitStarted(cmd command) error {
	started, err := c.launch.Wait(c.pid)
	if err == nil {
		if started.Pid > 0 {
			c.group = started.Pid
		}
		return nil
	}
	text := c.stderrTail()
	status := c.discard()
	failure, ok := errors.AsType[*launcher.Failure](err)
	const where = " in the sandbox"
	switch {
	case !ok:
	case failure.Stage == launcher.StageDir:
		return cmd.noDirectory(err, where)
	case failure.Stage == launcher.StageFind:
		return cmd.noProgram(err, where)
	case failure.Stage == launcher.StageExec:
		return &Error{Program: cmd.spec.Argv[0], Reason: execReason(failure.What, err) + where, Err: errnoOf(err)}
	}
	if errors.Is(err, sandbox.ErrLauncherEnded) {
		err = fmt.Errorf("%w (%s)", err, howEnded(status))
	}
	if text != "" {
		err = fmt.Errorf("%w: %q", err, text)
	}
	return &sandbox.PolicyError{Err: err}
}

// signalForwarder returns the function that makes the launcher signal the program's group;
// nil if the leader is the program.
func (c *child) signalForwarder() func(syscall.Signal) error {
	if c.launch == nil || c.launch.Execs() {
		return nil
	}
	return c.launch.Signal
}

// howEnded describes the end of a process: its signal, or its exit code.
func howEnded(status syscall.WaitStatus) string {
	if status.Signaled() {
		return signalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

// stderrTail returns what bubblewrap or a launcher has printed, in one line.
func (c *child) stderrTail() string {
	conn, err := c.outputs[len(c.outputs)-1].file.SyscallConn()
	if err != nil {
		return ""
	}
	text, n := make([]byte, 400), 0
	_ = conn.Read(func(fd uintptr) bool {
		n, err = sys.Read(int(fd), text)
		return true // do not wait for more
	})
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text[:n])), " ")
}

// programStatus returns the status of the program, given that of the leader, and releases
// the sandbox.
func (c *child) programStatus(status syscall.WaitStatus) syscall.WaitStatus {
	if c.launch != nil && !c.launch.Execs() {
		if own, ok := c.launch.Status(); ok {
			status = own
		}
	}
	c.releaseSandbox()
	return status
}

// releaseSandbox frees the server's resources of a sandbox whose child has exited or was
// never started.
func (c *child) releaseSandbox() {
	if c.launch != nil {
		c.launch.Close()
	}
	if c.confinement != nil {
		c.confinement.Release()
	}
}
