package main

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

	"execserver/internal/cli/terminal"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/protocol"
)

// Exit codes of run if the command's end does not decide, as those of env(1), timeout(1) and
// of shells.
const (
	exitTimeout    = 124
	exitFailed     = 125
	exitNotAllowed = 126
	exitNotFound   = 127
)

// runFailure says why run cannot exit as its command did.
type runFailure struct {
	text string
	code int
}

func (e *runFailure) Error() string { return e.text }

// endingOf returns the end of this program for that of a command. It says why somebody else
// than the command, or a signal of this program, has ended it.
func endingOf(end client.Exit) error {
	code := end.ExitCode & 0xFF
	switch end.EndedBy {
	case protocol.EndedByTimeout:
		return &runFailure{"the time of --timeout is over, so the server has ended the command", exitTimeout}
	case protocol.EndedByOutputLimit:
		return &runFailure{"the command has written more than --max-output, so the server has killed it", code}
	case protocol.EndedBySessionExpired:
		return &runFailure{"the server has ended the session, and the command with it", code}
	case protocol.EndedByServerShutdown:
		return &runFailure{"the server was stopped, and has ended the command", code}
	}
	if end.OOMKilled {
		return &runFailure{"the kernel has killed the command, or a part of it, for lack of memory", code}
	}
	return cli.ExitCode(code)
}

func newRunCommand() *cobra.Command {
	var o runOptions
	command := &cobra.Command{
		Use:        "run [flags] -- COMMAND [ARG...]",
		Short:      "Run a command on a server or on this machine",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"exec", "ssh", "shell", "rm", "mv", "mkdir"},
		Long: "run runs a command on a server as if it ran on this machine: it connects the input and output,\n" +
			"forwards signals, and exits with the command's exit code. The exit code is 124 after --timeout, 125\n" +
			"if run itself fails, 126 if the server cannot execute the program, and 127 if it does not find it.\n" +
			"When the link breaks, run says so, and tries as long as the server keeps the command.\n" +
			"What the command leaves in the background does not delay run, which says what it is.\n" +
			"Without --on and --url the command runs at the default of environments.toml, or, if there is none,\n" +
			"on this machine, in the same way.",
		Example: "  exec-server run --url ws://127.0.0.1:8765 -- make test\n" +
			"  exec-server run -t --on box -- bash\n" +
			"  tar c . | exec-server run --on box -- tar x -C /tmp",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.NewUsageError(errors.New("there is no command to run; put it after --"), command)
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

// run runs the command and returns its exit code as an exitCode.
func (o *runOptions) run(args []string) error {
	// The writers notice that nobody reads any more, and then run ends the command.
	serve.IgnoreBrokenPipes()
	collectLess()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	// To the end: one more ^C must not change the exit code while the program exits.
	signal.Notify(signals, heeded()...)
	if o.tty {
		signal.Notify(signals, continueSignal)
	}
	r := &runner{
		cancel: cancel, link: terminal.NewLinkMonitor(label(&o.where)),
		where: &o.where, keeping: &o.keeping, program: args[0],
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
		return &runFailure{fmt.Sprintf("%s; a single argument is the name of a program; a command line is for a shell: sh -c %s",
			cli.OneLine(err.Error()), cli.QuoteShell(cli.Printable(args[0]))), exitNotFound}
	}
	if errors.Is(err, exec.ErrNotFound) {
		err = meantOn(args[0], err)
	}
	if err != nil {
		return runFailed(err)
	}
	if o.detach {
		return nil
	}
	return r.run(signals)
}

// start opens the environment and starts the command there.
func (o *runOptions) start(ctx context.Context, r *runner, args []string) (err error) {
	opts := &client.Options{Name: clientPrefix + "run", OnState: r.link.Set, RecoveryTimeout: client.RecoverWhileKept}
	if r.env, err = o.where.open(ctx, opts); err != nil {
		return err
	}
	c := r.env.Command(ctx, args[0], args[1:]...)
	o.configure(c)
	// Where the session ends with this program, so does the background.
	c.LeaveBackground = r.env.Info().SessionLifetime != nil
	o.warnOfLinks(ctx, r.env)
	if o.detach {
		return o.leaveRunning(ctx, r, c)
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
		r.lookBehind(ctx, o.keep)
		if err == nil && c.Exit.EndedBy == protocol.EndedByTimeout { // it ended well, but not by itself
			err = &client.ExitError{Exit: *c.Exit}
		}
		return err
	}
	return nil
}

// warnOfLinks warns if a link leads to the directory that a sandbox makes writable. An
// earlier command may have made the link, and the command can write where it leads.
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
	if err == nil && real != given { // the start reports an error
		fmt.Fprintf(os.Stderr, "Warning: %s leads over a link to %s, where the command may write\n", cli.Printable(o.directory), cli.Printable(real))
	}
}

// heeded returns the signals that run forwards. It leaves out those that were ignored
// when run started, as under nohup.
func heeded() (signals []os.Signal) {
	for _, s := range passedSignals {
		if s == resizeSignal || !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// endByFirst calls cancel for the first signal before started is closed, because there is
// no command yet to which run could forward it.
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

// collectLess lets a client that passes bulk data on use some megabytes more. With Go's
// default it would collect garbage after every 4 MB: 800 MB of output then took half as long
// again, and twice the processor time.
func collectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
