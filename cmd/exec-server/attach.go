package main

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

	"execserver/internal/cli/terminal"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/protocol"
)

// attachOptions are the flags of attach.
type attachOptions struct {
	where      where
	readOnly   bool
	takeOver   bool
	keeping    keeping
	escapeChar string
}

func newAttachCommand() *cobra.Command {
	var o attachOptions
	command := &cobra.Command{
		Use:        "attach [flags] TARGET",
		Short:      "Come back to a command, or watch one",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"resume", "reattach", "fg"},
		Long: "attach connects the terminal with a command that run -d started, that its person has left, or\n" +
			"that somebody else is using. It shows the output that the server has kept, and then goes on.\n" +
			"TARGET is the name or the id of a session, the id of a process, or SESSION/PROCESS.\n\n" +
			"With --read-only on a terminal it begins with the screen of the command, if the server has all of it.\n" +
			"Without --read-only the session becomes yours: whoever had it is told so, and gets their\n" +
			"terminal back. The command goes on when you leave. The exit code is that of the command, or\n" +
			"125 if attach fails.",
		Example: "  exec-server attach --on box build\n" +
			"  exec-server attach --on box --read-only build",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.NewUsageError(errors.New("name one session or process to attach to; exec-server ps lists them"), command)
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.where.check(command); err != nil {
				return err
			}
			escape, err := terminal.ParseEscape(o.escapeChar)
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
	command.ValidArgsFunction = o.where.completeTargets
	f := command.Flags()
	f.SortFlags = false
	o.where.addFlags(f)
	f.BoolVar(&o.readOnly, "read-only", false, "only watch: nothing that you type reaches the command")
	f.BoolVar(&o.takeOver, "take-over", false, "take the session over also from a client that is not run or attach, and loses it")
	terminal.AddEscapeFlag(f, &o.escapeChar)
	o.keeping.addFlags(f, "when ~d asks for a lease")
	f.BoolP("help", "h", false, "print this text")
	return command
}

// run attaches to the target and returns its exit code as an exitCode.
func (o *attachOptions) run(target string, escape int) error {
	serve.IgnoreBrokenPipes()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	// To the end: one more ^C must not change the exit code while the program exits.
	signal.Notify(signals, heeded()...)
	signal.Notify(signals, continueSignal)
	r := &runner{
		cancel: cancel, link: terminal.NewLinkMonitor(label(&o.where)), where: &o.where, keeping: &o.keeping,
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

// start finds the target, and connects this program with it.
func (o *attachOptions) start(ctx context.Context, r *runner, target string, escape int) error {
	found, err := o.find(ctx, target)
	if err != nil {
		return err
	}
	r.session = found.session
	if o.keeping.name == "" {
		o.keeping.name = found.session.Name
	}
	r.env, err = o.where.open(ctx, &client.Options{
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
		r.renewLease(ctx, false) // nothing is lost to this person if the connection breaks
	}
	if info.TTY && term.IsTerminal(int(os.Stdin.Fd())) {
		r.takeTerminal(escape)
		if o.readOnly && info.State == protocol.StateRunning {
			r.lookAtScreen(ctx)
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

// found is what a target means.
type found struct {
	session client.SessionInfo
	process string
}

// find asks the server what the target means. It refuses to take a session from a client
// that would only see its connection break.
func (o *attachOptions) find(ctx context.Context, target string) (f found, err error) {
	env, err := o.where.open(ctx, &client.Options{Name: clientPrefix + "attach", NoSession: true})
	if err != nil {
		return f, err
	}
	defer cli.Leave(env)
	session, process, err := resolveProcess(ctx, env, target)
	if err != nil {
		return f, o.where.atChosen(err)
	}
	f = found{session, process}
	if s := f.session; !o.readOnly && !o.takeOver && s.Attached && !strings.HasPrefix(s.Client, clientPrefix) {
		return f, fmt.Errorf("the client %q is using session %s and would lose it; watch with --read-only, or take the session with --take-over",
			s.Client, s.ID)
	}
	return f, nil
}

// describe returns the description of a process of the session.
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

// lookAtScreen asks the server for the screen, which is soon drawn, in place of all the output
// that it retains. If the server has no screens, or output is missing, or the picture has no
// place here, the output tells more.
func (r *runner) lookAtScreen(ctx context.Context) {
	rows, cols := r.screen.Size()
	shown, err := r.process.Screen(ctx, &client.ScreenOptions{Drawing: true})
	if err == nil && shown.OmittedBytes == 0 && !r.screen.Dumb && shown.Rows <= rows && shown.Cols <= cols {
		r.shown = shown
	}
}

// draw draws the screen that the process had. What this terminal showed moves up.
func (r *runner) draw() error {
	rows, _ := r.screen.Size()
	r.screen.Insert(strings.Repeat("\r\n", rows))
	_, err := r.screen.Write(r.shown.Drawing)
	return err
}

// follow passes the output on, from the screen or else the oldest that is retained, until
// the process has closed. The events before next are a replay.
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
			r.tellGap(gap)
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

// tellGap shows that output is missing.
func (r *runner) tellGap(gap *client.GapError) {
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

// copyInput types standard input, up to its end.
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

// leaveAttached leaves a session at the server as it was found. s is 0 if the person
// leaves.
func (r *runner) leaveAttached(s syscall.Signal) error {
	r.left = true
	text := ""
	if !r.env.Observing() {
		text = "left; the command goes on"
		ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
		defer cancel()
		if r.link.Get().Down {
			cancel() // the server knows nothing of it
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
		text += "\n" + r.where.comeBack(r.env.Info(), "come back with", r.sessionLabel())
	}
	r.parting = text
	if s != 0 {
		return cli.ExitCode(cli.Signaled + int(s))
	}
	return nil
}

// renewLease says what happens to the output of the session while nobody is there, if it
// has a lease. The lease stays as it is if that fails.
func (r *runner) renewLease(ctx context.Context, evict bool) {
	if r.session.EvictOutput {
		_, _ = r.env.Keep(ctx, client.Lease{For: r.session.Keep, EvictOutput: evict})
	}
}

// sessionLabel returns the name of the session, if it has one, or its id.
func (r *runner) sessionLabel() string {
	if r.session.Name != "" {
		return r.session.Name
	}
	return r.env.Session()
}

// endAttached ends the session of a process that has ended under the eyes of its owner,
// unless something else lives there.
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
		_, _ = r.env.Keep(ctx, client.Lease{}) // or it stays without its farewell, too
	}
}
