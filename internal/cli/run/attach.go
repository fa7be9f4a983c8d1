package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/term"
	"execserver/protocol"
)

// attachOptions are the flags of attach.
type attachOptions struct {
	machine    cli.Machine
	readOnly   bool
	takeOver   bool
	keeping    keeping
	escapeChar string
}

// AttachCommand returns the command attach.
func AttachCommand() *cobra.Command {
	var o attachOptions
	command := &cobra.Command{
		Use:        "attach [flags] TARGET",
		Short:      "Return to a command, or watch one",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"resume", "reattach", "fg"},
		Long: "attach connects your terminal to a command that was started by run -d, was detached, or belongs to\n" +
			"another client. It shows the retained output, and follows it. TARGET is the name or the id of a\n" +
			"session, the id of a process, or SESSION/PROCESS. attach needs a server that listens.\n\n" +
			"Without --read-only, attach takes over the session. A run or attach that had it exits with a\n" +
			"message; another client, such as Codex, loses its connection. With --read-only on a terminal, attach\n" +
			"starts with the current screen, if the server has all of it.\n\n" +
			"The command continues when you detach with ~d or ~. (see --escape-char). The exit code is that of\n" +
			"the command, or 125 if attach fails.",
		Example: "  exec-server attach --on box build\n" +
			"  exec-server attach --on box --read-only build",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.NewUsageError(errors.New("name one session or process to attach to; exec-server ps lists them"), command)
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			escape, err := term.ParseEscape(o.escapeChar)
			switch {
			case err != nil:
				err = fmt.Errorf("--escape-char: %w", err)
			case o.readOnly && o.takeOver:
				err = errors.New("--read-only and --take-over exclude each other")
			case command.Flags().Changed("name") && checkSessionName(o.keeping.name) != nil:
				err = checkSessionName(o.keeping.name)
			case o.keeping.time <= 0:
				err = errors.New("--keep must be greater than 0")
			default:
				return o.run(args[0], escape)
			}
			return cli.NewUsageError(err, command)
		},
	}
	command.ValidArgsFunction = o.machine.CompleteTarget
	f := command.Flags()
	o.machine.AddFlags(f)
	f.BoolVar(&o.readOnly, "read-only", false, "only watch: your input does not reach the command")
	f.BoolVar(&o.takeOver, "take-over", false, "take over even the session of a client other than run and attach, such as Codex")
	term.AddEscapeFlag(f, &o.escapeChar)
	o.keeping.addFlags(f, "when ~d asks for a lease")
	return command
}

// run attaches to the target and returns the exit code of the program as an error.
func (o *attachOptions) run(target string, escape int) error {
	cli.IgnoreBrokenPipes()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	// Never stopped: another ^C must not change the exit code while the program exits.
	signal.Notify(signals, forwardedSignals()...)
	signal.Notify(signals, continueSignal)
	r := &runner{
		cancel: cancel, link: term.NewLinkMonitor(o.machine.Label()), machine: &o.machine, keeping: &o.keeping,
		attached: true, replayed: make(chan struct{}),
	}
	defer r.close()
	started, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		endByFirst(signals, started, cancel)
	}()
	err := o.start(ctx, r, target, escape)
	close(started)
	<-stopped
	if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
		return cli.ExitCode(cli.Signaled + int(s.Signal))
	}
	if err != nil {
		return runFailed(err)
	}
	return r.run(signals)
}

// start finds the target, and connects this program to it.
func (o *attachOptions) start(ctx context.Context, r *runner, target string, escape int) error {
	found, err := o.find(ctx, target)
	if err != nil {
		return err
	}
	r.session = found.session
	if o.keeping.name == "" {
		o.keeping.name = found.session.Name
	}
	r.env, err = o.machine.Open(ctx, &client.Options{
		Name: clientPrefix + "attach", Observe: found.session.ID, OnState: r.link.Set, RecoveryTimeout: client.RecoverWhileKept,
	})
	if err != nil {
		return err
	}
	info, err := describe(ctx, r.env, found.process)
	if err != nil {
		return err
	}
	if len(info.Args) > 0 {
		r.program = info.Args[0]
	}
	if r.process, err = r.env.Attach(ctx, info.ID); err != nil {
		return err
	}
	if !o.readOnly {
		if err := r.env.TakeOver(ctx); err != nil {
			return fmt.Errorf("take over the session: %w", err)
		}
		r.renewLease(ctx, false) // block instead of evicting output if the connection breaks
	}
	if info.TTY && cli.IsTerminal(os.Stdin) {
		r.takeTerminal(escape)
		if o.readOnly && info.State == protocol.StateRunning {
			r.fetchScreen(ctx)
		}
		r.wait = func() error { return r.follow(ctx, info.NextSeq, r.screen, nil) }
		return nil
	}
	stdout, stderr := &outlet{os.Stdout, r.cancel}, &outlet{os.Stderr, r.cancel}
	r.wait = func() error { return r.follow(ctx, info.NextSeq, stdout, stderr) }
	if !o.readOnly && !info.TTY && !info.StdinClosed && !isNull(os.Stdin) {
		go r.copyInput(ctx) // until the program ends
	}
	return nil
}

// clientPrefix begins the names of this program's own clients.
const clientPrefix = "exec-server-"

// found is a resolved target.
type found struct {
	session client.SessionInfo
	process string
}

// find resolves the target. It refuses to take a session from a client that could not report the
// loss to its user.
func (o *attachOptions) find(ctx context.Context, target string) (f found, err error) {
	env, err := o.machine.Open(ctx, &client.Options{Name: clientPrefix + "attach", NoSession: true})
	if err != nil {
		return f, err
	}
	defer cli.Leave(env)
	session, process, err := cli.ResolveProcess(ctx, env, target)
	if err != nil {
		return f, o.machine.ExplainChoice(err)
	}
	f = found{session, process}
	if s := f.session; !o.readOnly && !o.takeOver && s.Attached && !strings.HasPrefix(s.Client, clientPrefix) {
		return f, fmt.Errorf("the client %q is using session %s and would lose it; watch with --read-only, or take the session with --take-over",
			s.Client, s.ID)
	}
	return f, nil
}

// describe returns the information about a process of the session.
func describe(ctx context.Context, env *client.Environment, id string) (info client.ProcessInfo, err error) {
	list, err := env.Processes(ctx)
	if err != nil {
		return info, err
	}
	i := slices.IndexFunc(list, func(p client.ProcessInfo) bool { return p.ID == id })
	if i < 0 {
		return info, fmt.Errorf("process %s is gone", id)
	}
	return list[i], nil
}

// fetchScreen fetches the current screen, which is faster to draw than all the retained output.
// It falls back to the output if the server has no screen, if output is missing, or if the screen
// does not fit.
func (r *runner) fetchScreen(ctx context.Context) {
	rows, cols := r.screen.Size()
	shown, err := r.process.Screen(ctx, &client.ScreenOptions{Drawing: true})
	if err == nil && shown.OmittedBytes == 0 && !r.screen.Dumb && shown.Rows <= rows && shown.Cols <= cols {
		r.shown = shown
	}
}

// draw draws the fetched screen. The previous content of the terminal scrolls up.
func (r *runner) draw() error {
	rows, _ := r.screen.Size()
	r.screen.Insert(strings.Repeat("\r\n", rows))
	_, err := r.screen.Write(r.shown.Drawing)
	return err
}

// follow copies the output until the process has closed. It starts after the fetched screen, or
// at the oldest retained event. The events before next are a replay.
func (r *runner) follow(ctx context.Context, next uint64, stdout, stderr io.Writer) error {
	replayed := sync.OnceFunc(func() { close(r.replayed) })
	defer replayed()
	if r.screen != nil {
		r.screen.SetFilter(next > 1)
	}
	after := uint64(0)
	if r.shown != nil {
		if err := r.draw(); err != nil {
			return err
		}
		after = r.shown.NextSeq - 1
		next = r.shown.NextSeq
	}
	for e, err := range r.process.EventsAfter(ctx, after) {
		if gap, ok := errors.AsType[*client.GapError](err); ok {
			r.showGap(gap)
			continue
		}
		if err != nil {
			return err
		}
		if r.screen != nil && e.Seq >= next {
			r.screen.SetFilter(false)
		}
		w := stdout
		if e.Stream == client.Stderr {
			w = stderr
		}
		if e.Kind == client.Output && w != nil {
			if _, err := w.Write(e.Data); err != nil {
				return err
			}
		}
		if e.Seq+1 >= next {
			replayed()
		}
	}
	exit, err := r.process.Wait(ctx)
	if err != nil {
		return err
	}
	if !exit.Success() || exit.EndedBy == protocol.EndedByTimeout {
		return &client.ExitError{Exit: *exit}
	}
	return nil
}

// showGap reports missing output.
func (r *runner) showGap(gap *client.GapError) {
	text := "output is missing here that the server did not keep"
	if gap.DroppedBytes > 0 {
		text = fmt.Sprintf("%d bytes of output are missing here, which the server did not keep", gap.DroppedBytes)
	}
	if r.screen == nil {
		fmt.Fprintf(os.Stderr, "[%s]\n", text)
		return
	}
	r.screen.Insert("\r\n[" + text + "]\r\n")
}

// copyInput copies standard input to the process, and then closes its input.
func (r *runner) copyInput(ctx context.Context) {
	buf := make([]byte, 32<<10)
	for {
		n, err := os.Stdin.Read(buf)
		if n > 0 && r.process.Write(ctx, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = r.process.CloseStdin(ctx)
			return
		}
	}
}

// leaveAttached leaves the session on the server as attach found it. s is 0 if the user leaves.
func (r *runner) leaveAttached(s syscall.Signal) error {
	r.left = true
	text := ""
	if !r.env.Observing() {
		text = "left; the command continues"
		ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
		defer cancel()
		if r.link.Get().Down {
			cancel() // the server cannot be reached
		}
		r.renewLease(ctx, r.session.EvictOutput)
		if err := r.env.Detach(ctx); err != nil {
			text = cli.ErrorLine(err)
		}
		switch kept := r.env.Info().SessionLifetime; {
		case r.session.Keep > 0:
			text += ", kept for " + cli.Spell(r.session.Keep)
		case kept != nil:
			text += "; the server ends it in " + cli.Spell(kept.Detached) + " unless somebody comes back"
		}
		text += "\n" + r.machine.ReattachHint(r.env.Info(), "come back with", r.sessionLabel())
	}
	r.parting = text
	if s != 0 {
		return cli.ExitCode(cli.Signaled + int(s))
	}
	return nil
}

// renewLease sets whether the server may evict output while no client is attached, if the session
// has a lease. Errors leave the lease unchanged.
func (r *runner) renewLease(ctx context.Context, evict bool) {
	if r.session.EvictOutput {
		_, _ = r.env.Keep(ctx, client.Lease{For: r.session.Keep, EvictOutput: evict})
	}
}

// sessionLabel returns the name of the session, or its id.
func (r *runner) sessionLabel() string {
	if r.session.Name != "" {
		return r.session.Name
	}
	return r.env.Session()
}

// endAttached ends the session of a process that ended while its owner was attached, unless the
// session has another live process.
func (r *runner) endAttached() {
	ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
	defer cancel()
	if r.env.Observing() || r.env.Err() != nil {
		return
	}
	list, err := r.env.Processes(ctx)
	other := slices.ContainsFunc(list, func(p client.ProcessInfo) bool { return p.ID != r.process.ID && p.Exit == nil })
	if err != nil || other {
		r.renewLease(ctx, r.session.EvictOutput)
		_ = r.env.Detach(ctx)
		return
	}
	if r.session.Keep > 0 {
		_, _ = r.env.Keep(ctx, client.Lease{}) // otherwise the lease would keep the session
	}
}
