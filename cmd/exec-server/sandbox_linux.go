package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
	"execserver/process"
	"execserver/protocol"
)

// sandboxOptions are the flags of sandbox.
type sandboxOptions struct {
	read, write, deny []string
	sockets           []string
	noNetwork         bool
}

func newSandboxCommand() *cobra.Command {
	var o sandboxOptions
	command := &cobra.Command{
		Use:   "sandbox [flags] -- COMMAND [ARG...]",
		Short: "Run a command that can read and write only what it is given",
		Long: "sandbox runs a command here, by the same means as the server confines commands for clients.\n" +
			"Without --read it can read nothing but what programs need to run, and what it may write.",
		Example: "  exec-server sandbox --read / --write . --no-network -- make test",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("there is no command to run; put it after --"), command}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return o.run(args) },
	}
	f := command.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // what follows the command is the command's
	f.StringArrayVar(&o.read, "read", nil, "`path` that may be read, with everything below it; may be repeated")
	f.StringArrayVar(&o.write, "write", nil, "`path` that may be written, but for .git, .agents, .codex and .aws in it; may be repeated")
	f.StringArrayVar(&o.deny, "deny", nil, "`path` that can neither be read nor written; may be repeated")
	f.StringArrayVar(&o.sockets, "socket", nil, "`path` of a socket of another program, or a directory of such, that may be used with network; may be repeated")
	f.BoolVar(&o.noNetwork, "no-network", false, "keep the command from the network, and from the sockets of other programs")
	f.BoolP("help", "h", false, "print this text")
	return command
}

// policy makes a policy of the flags.
func (o *sandboxOptions) policy() (*protocol.Sandbox, error) {
	files := &protocol.FilePolicy{Entries: []protocol.FileEntry{{Access: protocol.AccessRead, Special: protocol.SpecialMinimal}}}
	for _, list := range []struct {
		access protocol.Access
		paths  []string
	}{
		{protocol.AccessRead, o.read},
		{protocol.AccessWrite, o.write},
		{protocol.AccessDeny, o.deny},
	} {
		for _, path := range list.paths {
			absolute, err := filepath.Abs(path)
			if err != nil {
				return nil, err
			}
			if _, err := os.Stat(absolute); err != nil {
				return nil, err // most likely it is misspelled
			}
			files.Entries = append(files.Entries, protocol.FileEntry{Access: list.access, Path: protocol.URIPath(absolute)})
		}
	}
	return &protocol.Sandbox{Files: files, Network: !o.noNetwork}, nil
}

// run runs the command and returns its exit code as an exitCode.
func (o *sandboxOptions) run(args []string) error {
	failed := func(err error) error { return &runFailure{err.Error(), exitFailed} }
	policy, err := o.policy()
	if err != nil {
		return failed(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return failed(err)
	}
	program, err := process.Find(args[0], dir)
	if err != nil {
		return &runFailure{err.Error(), exitNotFound}
	}
	sockets := make([]string, len(o.sockets))
	for i, path := range o.sockets {
		if sockets[i], err = filepath.Abs(path); err != nil {
			return failed(err)
		}
	}
	inheritNothing()
	engine := sandbox.New(&sandbox.Options{Sockets: sockets})
	defer engine.Close()
	confinement, err := engine.Confine(policy, sandbox.Context{Cwd: dir, TmpDir: os.Getenv("TMPDIR")})
	if err != nil {
		return failed(err)
	}
	defer confinement.Release()
	streams, err := newStreams()
	if err != nil {
		return failed(err)
	}
	defer streams.finish()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedSignals...)
	err = confinement.Run(context.Background(), sandbox.Command{
		Program: program, Argv: args, Env: os.Environ(), Dir: dir, Shared: true,
		Started: func(p *os.Process) { go passToLauncher(signals, p) },
	}, streams.attach)
	return sandboxResult(err)
}

// passToLauncher passes signals on, but for those that a terminal has sent to
// the launcher and the command as well.
func passToLauncher(signals <-chan os.Signal, p *os.Process) {
	onTerminal := term.IsTerminal(int(os.Stdin.Fd()))
	for s := range signals {
		fromTerminal := s == syscall.SIGINT || s == syscall.SIGQUIT || s == resizeSignal
		if !onTerminal || !fromTerminal {
			_ = p.Signal(s) // it may have ended
		}
	}
}

// sandboxResult makes the program's own end of the command's.
func sandboxResult(err error) error {
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return exitCode(exitSignal + int(status.Signal()))
		}
		return exitCode(exit.ExitCode())
	}
	failure := &runFailure{fmt.Sprintf("the command was not started in a sandbox: %s", err), exitFailed}
	why, ok := errors.AsType[*launcher.Failure](err)
	switch {
	case ok && why.Stage == launcher.StageDir:
		failure.text = "the working directory cannot be reached in the sandbox; add --read . or --write ."
	case ok && why.Stage == launcher.StageExec && errors.Is(why, os.ErrNotExist):
		failure.code = exitNotFound
	case ok && why.Stage == launcher.StageExec:
		failure.code = exitNotAllowed
	}
	return failure
}
