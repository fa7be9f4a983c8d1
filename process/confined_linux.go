package process

import (
	"errors"
	"os"
	"syscall"

	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
)

// confined is what a child in a sandbox has besides; the zero value is not in
// one. A launcher is its leader then, or has become the program.
type confined struct {
	confinement *sandbox.Confinement
	launch      *sandbox.Launch
}

// confine makes the start of a child one of a launcher, if it shall be confined,
// and returns what the launcher has as descriptors behind its streams.
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

// explain says why a child could not be started.
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
		return &Error{Program: cmd.spec.Argv[0], Reason: "working directory \"" + cmd.dir + "\" in the sandbox", Err: reason(err)}
	case ok && failure.Stage == launcher.StageExec:
		return &Error{Program: cmd.spec.Argv[0], Reason: execReason(cmd, err) + " in the sandbox", Err: reason(err)}
	}
	return &sandbox.PolicyError{Err: err}
}

// ended makes the program's status of its leader's, and lets go of the sandbox,
// in which nothing lives any more.
func (c *child) ended(status syscall.WaitStatus) syscall.WaitStatus {
	if c.launch != nil && !c.launch.Becomes() {
		if own, ok := c.launch.Status(); ok {
			status = own
		}
	}
	c.release()
	return status
}

func (c *child) release() {
	if c.launch != nil {
		c.launch.Close()
	}
	if c.confinement != nil {
		c.confinement.Release()
	}
}
