// Package run implements the commands that run a program in the foreground: run and attach on any
// machine, and sandbox on this one.
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/term"
	"execserver/protocol"
)

// endingOf converts the exit of a command to the end of this program, with the reason if
// something other than the command or a signal of this program ended it.
func endingOf(end client.Exit) error {
	code := end.ExitCode & 0xFF
	switch end.EndedBy {
	case protocol.EndedByTimeout:
		return &cli.Failure{Text: "the time of --timeout is over, so the server has ended the command", Code: cli.ExitTimeout}
	case protocol.EndedByOutputLimit:
		return &cli.Failure{Text: "the command has written more than --max-output, so the server has killed it", Code: code}
	case protocol.EndedBySessionExpired:
		return &cli.Failure{Text: "the server has ended the session, and the command with it", Code: code}
	case protocol.EndedByServerShutdown:
		return &cli.Failure{Text: "the server was stopped, and has ended the command", Code: code}
	}
	if end.OOMKilled {
		return &cli.Failure{Text: "the kernel has killed the command, or a part of it, for lack of memory", Code: code}
	}
	return cli.ExitCode(code)
}

// Command returns the command run.
func Command() *cobra.Command {
	var o runOptions
	command := &cobra.Command{
		Use:        "run [flags] [-- COMMAND [ARG...]]",
		Short:      "Run a command on a machine",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"exec", "ssh", "shell", "rm", "mv", "mkdir"},
		Long: "run runs a command on a server as if it ran on this machine. It connects the input and output,\n" +
			"forwards signals, and exits with the code of the command. The command gets the environment and the\n" +
			"directory of the server.\n\n" +
			"Without --on and --url, the command runs on the default machine of environments.toml, and run names\n" +
			"that machine on a terminal. --on local is this machine. Without a COMMAND, -t runs the login shell of\n" +
			"the account there.\n\n" +
			"The exit code is 124 after --timeout, and 125 if run itself fails. It is 126 if the server cannot\n" +
			"execute the program or enforce a limit or the sandbox, and 127 if it does not find the program.\n\n" +
			"With a server that listens, run reconnects after a broken connection, for as long as the server\n" +
			"keeps the session (90 seconds by default). It does not wait for background processes of the command,\n" +
			"and lists them. A server that connect or ssh starts ends with its connection. There, and on this\n" +
			"machine, run waits until background processes close the output.",
		Example: "  exec-server run --on box -- make test\n" +
			"  exec-server run -t --on box                   # a login shell\n" +
			"  exec-server run -d --name build --url ws://127.0.0.1:8765 -- make\n" +
			"  tar c . | exec-server run --on box -- tar x -C /tmp",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 && !o.tty {
				return cli.NewUsageError(errors.New("there is no command to run; put it after --, or run a shell with -t"), command)
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.check(command); err != nil {
				return err
			}
			return o.run(args)
		},
	}
	o.addFlags(command.Flags())
	modes := []cobra.Completion{"read-only", "workspace-write"}
	// It fails only for a flag that does not exist or is completed already.
	_ = command.RegisterFlagCompletionFunc("sandbox", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp))
	return command
}

// run runs the command and returns its exit code as an error.
func (o *runOptions) run(args []string) error {
	// A write to a closed pipe fails, and then run ends the command.
	cli.IgnoreBrokenPipes()
	collectLess()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	// Never stopped: another ^C must not change the exit code while the program exits.
	signal.Notify(signals, forwardedSignals()...)
	if o.tty {
		signal.Notify(signals, continueSignal)
	}
	r := &runner{
		cancel: cancel, link: term.NewLinkMonitor(o.machine.Label()),
		machine: &o.machine, keeping: &o.keeping,
	}
	defer r.close()
	started, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		endByFirst(signals, started, cancel)
	}()
	err := o.start(ctx, r, args)
	close(started)
	<-stopped
	if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
		return cli.ExitCode(cli.Signaled + int(s.Signal))
	}
	if errors.Is(err, exec.ErrNotFound) && len(args) == 1 && strings.ContainsAny(args[0], " \t\n;|&<>") {
		return &cli.Failure{Text: fmt.Sprintf("%s; a single argument names a program; a command line needs a shell: sh -c %s",
			cli.OneLine(err.Error()), cli.QuoteShell(cli.Printable(args[0]))), Code: cli.ExitNotFound}
	}
	if errors.Is(err, exec.ErrNotFound) && len(args) > 0 {
		err = cli.SuggestMachine(args[0], err)
	}
	if err != nil {
		return runFailed(err)
	}
	if o.detach {
		return nil
	}
	return r.run(signals)
}

// start opens the environment and starts the command.
func (o *runOptions) start(ctx context.Context, r *runner, args []string) (err error) {
	opts := &client.Options{Name: clientPrefix + "run", OnState: r.link.Set, RecoveryTimeout: client.RecoverWhileKept}
	open := o.machine.Open
	if o.sandbox != "" {
		open = o.machine.OpenSandboxed
	}
	if r.env, err = open(ctx, opts); err != nil {
		return err
	}
	if where := o.machine.DescribeDefault(); where != "" && cli.IsTerminal(os.Stdin) && cli.IsTerminal(os.Stderr) {
		fmt.Fprintln(os.Stderr, "running on", where)
	}
	c, err := commandOf(ctx, r.env, args)
	if err != nil {
		return err
	}
	r.program = c.Path
	o.configure(c)
	// Without a session lifetime, background processes end with this program.
	c.LeaveBackground = r.env.Info().SessionLifetime != nil
	o.warnOfLinks(ctx, r.env)
	if o.detach {
		return o.leaveRunning(ctx, r, c)
	}
	if o.keep {
		if err := keepable(r.env); err != nil {
			return fmt.Errorf("cannot keep the background processes of the command: %w", err)
		}
	}
	if err := o.connect(ctx, r, c); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	r.process = c.Process
	r.wait = func() error {
		err := c.Wait()
		r.reportBackground(ctx, o.keep)
		if err == nil && c.Exit.EndedBy == protocol.EndedByTimeout { // the server ended it with the exit code 0
			err = &client.ExitError{Exit: *c.Exit}
		}
		return err
	}
	return nil
}

// commandOf returns the command of these arguments or, without any, the login shell of the account.
func commandOf(ctx context.Context, env *client.Environment, args []string) (*client.Cmd, error) {
	if len(args) > 0 {
		return env.Command(ctx, args[0], args[1:]...), nil
	}
	shell := env.Info().ShellPath
	if shell == "" {
		return nil, errors.New("the server does not report a login shell; name one, such as -- sh")
	}
	c := env.Command(ctx, shell)
	if env.Info().OS != "windows" {
		c.Args = []string{"-" + path.Base(shell)} // it reads the files of a login, such as ~/.profile
	}
	return c, nil
}

// warnOfLinks warns if the directory that a sandbox makes writable is a link. An earlier command
// may have made the link, and the command can write to its target.
func (o *runOptions) warnOfLinks(ctx context.Context, env *client.Environment) {
	if o.sandbox != "workspace-write" || o.directory == "" {
		return
	}
	given := path.Clean(o.directory)
	real, err := env.FS(o.directory).WithContext(ctx).RealPath(".")
	if err == nil && !path.IsAbs(given) {
		var base string
		base, err = env.FS("").WithContext(ctx).RealPath(".")
		given = path.Join(base, given)
	}
	if err == nil && real != given { // the start reports errors
		fmt.Fprintf(os.Stderr, "Warning: %s leads through a link to %s, where the command may write\n", cli.Printable(o.directory), cli.Printable(real))
	}
}

// forwardedSignals returns the signals that run forwards, without those that were ignored when
// run started, as under nohup.
func forwardedSignals() (signals []os.Signal) {
	for _, s := range passedSignals {
		if s == resizeSignal || !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// endByFirst calls cancel with the first signal before started is closed, because no command can
// receive it yet.
func endByFirst(signals <-chan os.Signal, started <-chan struct{}, cancel context.CancelCauseFunc) {
	for {
		select {
		case <-started:
			return
		case s := <-signals:
			if s != resizeSignal && s != continueSignal {
				cancel(cli.SignalError{Signal: s.(syscall.Signal)})
				return
			}
		}
	}
}

// collectLess trades some megabytes for speed. With the default of Go, the client collects
// garbage after every 4 MB: 800 MB of output took half as long again, and twice the processor
// time.
func collectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
