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

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/process"
	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
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
		Use:     "sandbox [flags] -- COMMAND [ARG...]",
		Short:   "Run a command in a sandbox",
		GroupID: cli.GroupServe,
		Long: "sandbox runs a command on this machine, in the sandbox that the server uses for its clients.\n" +
			"Without --read the command can read only what programs need to run, and what it may write.\n" +
			"The exit code is the command's, 125 if the command does not start, 126 if the program cannot be\n" +
			"executed, and 127 if there is no such program.",
		Example: "  exec-server sandbox --read / --write . --no-network -- make test",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.NewUsageError(errors.New("there is no command to run; put it after --"), command)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return o.run(args) },
	}
	f := command.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // what follows the command is the command's
	f.StringArrayVar(&o.read, "read", nil, "let the command read this `path` and everything below it; may be repeated")
	f.StringArrayVar(&o.write, "write", nil, "let the command write this `path` and everything below it, except .git, .agents, .codex and .aws; may be repeated")
	f.StringArrayVar(&o.deny, "deny", nil, "deny the command this `path` and everything below it; may be repeated")
	f.StringArrayVar(&o.sockets, "socket", nil, "let the command use the unix socket at this `path`, or the sockets in this directory; needs a network; may be repeated")
	f.BoolVar(&o.noNetwork, "no-network", false, "give the command no network but a loopback interface of its own, and no sockets of other programs")
	f.BoolP("help", "h", false, "print this text")
	return command
}

// policy builds a policy from the flags.
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
				return nil, err // most likely a misspelled path
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
	if errors.Is(err, os.ErrPermission) {
		return &runFailure{err.Error(), exitNotAllowed}
	}
	if err != nil {
		return &runFailure{err.Error(), exitNotFound}
	}
	sockets := make([]string, len(o.sockets))
	for i, path := range o.sockets {
		if sockets[i], err = filepath.Abs(path); err != nil {
			return failed(err)
		}
	}
	serve.InheritNothing()
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

// passToLauncher forwards signals, except those that a terminal has also sent to the
// launcher and the command.
func passToLauncher(signals <-chan os.Signal, p *os.Process) {
	onTerminal := term.IsTerminal(int(os.Stdin.Fd()))
	for s := range signals {
		fromTerminal := s == syscall.SIGINT || s == syscall.SIGQUIT || s == resizeSignal
		if !onTerminal || !fromTerminal {
			_ = p.Signal(s) // it may have ended
		}
	}
}

// sandboxResult converts the end of the command to the end of this program.
func sandboxResult(err error) error {
	if err == nil {
		return nil
	}
	if end, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := end.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return cli.ExitCode(cli.Signaled + int(status.Signal()))
		}
		return cli.ExitCode(end.ExitCode())
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
