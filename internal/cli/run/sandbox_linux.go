package run

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

	"execserver/internal/cli"
	"execserver/internal/cli/serve"
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

// SandboxCommand returns the command sandbox.
func SandboxCommand() *cobra.Command {
	var o sandboxOptions
	command := &cobra.Command{
		Use:     "sandbox [flags] -- COMMAND [ARG...]",
		Short:   "Run a command in a sandbox",
		GroupID: cli.GroupServe,
		Long: "sandbox runs a command on this machine, in the sandbox that the server uses for its clients. Without\n" +
			"--read the command can read only what programs need to run, and the paths of --write. Without\n" +
			"--no-network it can use the network.\n\n" +
			"The exit code is that of the command. It is 125 if the command does not start, 126 if the program\n" +
			"cannot be executed, and 127 if it does not exist.",
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
	f.SetInterspersed(false) // flags after the program belong to it
	f.StringArrayVar(&o.read, "read", nil, "let the command read this `path` and everything below it; may be repeated")
	f.StringArrayVar(&o.write, "write", nil, "let the command write this `path` and everything below it, except .git, .agents, .codex and .aws; may be repeated")
	f.StringArrayVar(&o.deny, "deny", nil, "deny the command this `path` and everything below it; may be repeated")
	f.StringArrayVar(&o.sockets, "socket", nil, "let the command use the unix socket at this `path`, or the sockets in this directory; needs a network; may be repeated")
	f.BoolVar(&o.noNetwork, "no-network", false, "give the command no network but a loopback interface of its own, and no sockets of other programs")
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

// run runs the command and returns its exit code as an error.
func (o *sandboxOptions) run(args []string) error {
	failed := func(err error) error { return &cli.Failure{Text: err.Error(), Code: cli.ExitFailed} }
	policy, err := o.policy()
	if err != nil {
		return failed(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return failed(err)
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
		Program: args[0], Argv: args, Env: os.Environ(), Dir: dir, Shared: true,
		Started: func(p *os.Process) { go passToLauncher(signals, p) },
	}, streams.attach)
	return sandboxResult(err)
}

// passToLauncher forwards signals, except those that a terminal sends to the whole job.
func passToLauncher(signals <-chan os.Signal, p *os.Process) {
	onTerminal := cli.IsTerminal(os.Stdin)
	for s := range signals {
		fromTerminal := s == syscall.SIGINT || s == syscall.SIGQUIT || s == resizeSignal
		if !onTerminal || !fromTerminal {
			_ = p.Signal(s) // fails after the end
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
	failure := &cli.Failure{Text: fmt.Sprintf("the command was not started in a sandbox: %s", err), Code: cli.ExitFailed}
	why, ok := errors.AsType[*launcher.Failure](err)
	switch {
	case ok && why.Stage == launcher.StageDir:
		failure.Text = "the working directory cannot be reached in the sandbox; add --read . or --write ."
	case ok && (why.Stage == launcher.StageFind || why.Stage == launcher.StageExec) && errors.Is(why, os.ErrNotExist):
		failure.Code = cli.ExitNotFound
	case ok && (why.Stage == launcher.StageFind || why.Stage == launcher.StageExec):
		failure.Code = cli.ExitNotAllowed
	}
	return failure
}
