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

// confined is the part of a child that only one in a sandbox has. Its leader is a launcher,
// or a launcher that has become the program.
type confined struct {
	confinement *sandbox.Confinement
	launch      *sandbox.Launch
}

// confine changes the start of a child into that of a launcher if the child is to be
// confined. It returns the launcher's descriptors behind its streams.
func (c *child) confine(cmd command, attr *syscall.ProcAttr, path *string, argv *[]string) (files []*os.File, err error) {
	if cmd.spec.Sandbox == nil {
		return nil, nil
	}
	if c.confinement, err = cmd.spec.Sandbox(); err != nil || c.confinement == nil {
		return nil, err
	}
	c.launch, err = c.confinement.Launch(sandbox.Command{
		Program: cmd.path, Argv: cmd.argv, Env: cmd.env, Dir: cmd.dir, DirFile: cmd.spec.DirFile, Terminal: cmd.spec.TTY,
	})
	if err != nil {
		c.release()
		return nil, &sandbox.PolicyError{Err: err}
	}
	*path, *argv = c.launch.Path, c.launch.Args
	attr.Env, attr.Dir = []string{}, "/"
	c.launch.Attributes(attr.Sys)
	// A launcher that becomes the program leads the session itself.
	attr.Sys.Setctty = cmd.spec.TTY && c.launch.Becomes()
	return c.launch.Files, nil
}

// explain returns the error of a child that could not be started.
func (c *child) explain(cmd command, err error) error {
	if c.launch != nil {
		return &sandbox.PolicyError{Err: sandbox.ExplainStart(err)}
	}
	return &Error{Program: cmd.spec.Argv[0], Reason: execReason(cmd, err), Err: err}
}

// awaitStart waits until the launcher, if there is one, has started the program.
// After an error the caller discards the child.
func (c *child) awaitStart(cmd command) error {
	if c.launch == nil {
		return nil
	}
	started, err := c.launch.Wait(c.pid)
	if err == nil {
		if started.Pid > 0 {
			c.group = started.Pid
		}
		return nil
	}
	failure, ok := errors.AsType[*launcher.Failure](err)
	switch {
	case ok && failure.Stage == launcher.StageDir:
		return &Error{Program: cmd.spec.Argv[0], Reason: "working directory \"" + cmd.dir + "\" in the sandbox", Err: errnoOf(err)}
	case ok && failure.Stage == launcher.StageExec:
		return &Error{Program: cmd.spec.Argv[0], Reason: execReason(cmd, err) + " in the sandbox", Err: errnoOf(err)}
	}
	if words := c.lastWords(); words != "" {
		err = fmt.Errorf("%w: %q", err, words)
	}
	return &sandbox.PolicyError{Err: err}
}

// passSignal returns what has the launcher send a signal to the program's group; nil if the
// leader is the program.
func (c *child) passSignal() func(syscall.Signal) error {
	if c.launch == nil || c.launch.Becomes() {
		return nil
	}
	return c.launch.Signal
}

// lastWords returns what bubblewrap or a launcher has printed, in one line.
func (c *child) lastWords() string {
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

// ended returns the program's status for its leader's, and releases the sandbox, in which
// nothing lives any more.
func (c *child) ended(status syscall.WaitStatus) syscall.WaitStatus {
	if c.launch != nil && !c.launch.Becomes() {
		if own, ok := c.launch.Status(); ok {
			status = own
		}
	}
	c.release()
	return status
}

// release frees what the sandbox of a child that has ended, or never began, needs here.
func (c *child) release() {
	if c.launch != nil {
		c.launch.Close()
	}
	if c.confinement != nil {
		c.confinement.Release()
	}
}
