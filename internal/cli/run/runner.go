package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/term"
)

// runner connects this program to one remote process.
type runner struct {
	env     *client.Environment // nil before it is open
	process *client.Process
	wait    func() error // waits until the process has ended and its output is written
	cancel  context.CancelCauseFunc
	endless io.WriteCloser // stdin that cannot be closed; nil if Cmd.Stdin is used
	link    *term.LinkMonitor
	notice  *term.LinkNotice // nil where a screen has a status line

	machine *cli.Machine
	keeping *keeping
	program string // of the command
	parting string // printed at the end unless empty

	attached bool               // the session existed before this program, and outlives it
	session  client.SessionInfo // of an attached process
	shown    *client.Screen     // drawn first by attach --read-only; nil replays the output
	replayed chan struct{}      // closed when the output before the attachment is written

	// The local terminal; nil without one.
	console *term.Console
	screen  *term.Screen
	input   *term.InputForwarder
	resizer *term.Resizer

	drawing    <-chan struct{}  // receives when an attached program should draw its screen
	background <-chan time.Time // receives while another job has the terminal

	left       bool // the user has left
	unexpected bool // the user does not expect the end
}

// run waits for the end of the command. Meanwhile it forwards signals and keys.
func (r *runner) run(signals <-chan os.Signal) error {
	if r.console != nil {
		defer r.console.CloseOnPanic()
		if err := r.begin(); err != nil {
			return runFailed(err)
		}
		defer func() { r.resizer.End() }() // it may begin later
	} else {
		r.notice = &term.LinkNotice{Out: os.Stderr, Link: r.link}
	}
	if r.endless != nil {
		go func() { _, _ = io.Copy(r.endless, os.Stdin) }()
	}
	ended := make(chan error, 1)
	go func() { ended <- r.wait() }()
	var passing chan error // not nil while the first of waiting is being forwarded
	var since time.Time    // when that began
	var waiting []syscall.Signal
	for {
		if passing == nil && len(waiting) > 0 {
			passing, since = make(chan error, 1), time.Now()
			go r.pass(waiting[0], passing)
		}
		select {
		case err := <-ended:
			if r.attached {
				r.endAttached()
			}
			return r.result(err)
		case err := <-passing:
			first := waiting[0]
			passing, waiting = nil, waiting[1:]
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return r.unanswered(first)
			case err != nil && !errors.Is(err, os.ErrProcessDone):
				r.cancel(cli.SignalError{Signal: first})
			}
		case s := <-signals:
			switch {
			case s == resizeSignal:
				r.resizer.Resize()
			case s == continueSignal:
				if err := r.resume(); err != nil {
					return runFailed(err)
				}
			case r.attached:
				return r.leaveAttached(s.(syscall.Signal))
			case r.outOfSight(): // the user wants to end the stopped command
				return r.hangUp(s.(syscall.Signal), ended)
			case passing != nil && time.Since(since) > signalPatience:
				return r.unanswered(s.(syscall.Signal))
			default:
				waiting = append(waiting, s.(syscall.Signal))
			}
		case keys, ok := <-r.input.Input():
			if !ok && r.attached { // the terminal is gone
				return r.leaveAttached(syscall.SIGHUP)
			}
			if !ok {
				return r.hangUp(syscall.SIGHUP, ended)
			}
			for len(keys) > 0 {
				var command byte
				command, keys = r.input.Typed(keys)
				if done, err := r.do(command, ended); done {
					return err
				}
			}
			r.hurry()
		case <-r.background:
			if err := r.stayStopped(); err != nil {
				return runFailed(err)
			}
		case <-r.drawing:
			r.drawing = nil
			r.redraw()
		case <-r.resizer.Done():
			r.input.Release()
		case err := <-r.input.Accepted():
			r.input.Answered(err)
		case <-r.link.Changed:
			r.look()
		case <-r.input.Clock():
			r.look()
		case <-r.notice.Clock():
			r.look()
		}
	}
}

// look updates the display of the link.
func (r *runner) look() {
	r.notice.Look()
	if r.input != nil && r.input.Look() {
		r.redraw()
	}
}

// do executes a command of the user. done means that the command ends this program.
func (r *runner) do(command byte, ended <-chan error) (done bool, err error) {
	switch command {
	case term.KeyLeave, term.KeyDetach:
		switch {
		case r.attached && (command == term.KeyLeave || r.env.Observing() || r.session.Keep > 0):
			return true, r.leaveAttached(0)
		case command == term.KeyLeave:
			return true, r.hangUp(syscall.SIGHUP, ended)
		}
		if err := r.detach(); err != nil {
			r.screen.Print("\r\ncannot detach: " + cli.ErrorLine(err) + "\r\n")
			return false, nil
		}
		return true, nil
	case term.KeyHelp:
		r.screen.Print(term.EscapeHelp(r.input.Escapes.Char, r.attached, r.env.Observing()))
	case term.KeySuspend:
		r.suspend()
	}
	return false, nil
}

// hangUpPatience is how long a process may take to end after SIGHUP.
const hangUpPatience = time.Second

// hangUp sends SIGHUP to the process, as a closing terminal does. s is the signal by which the
// user left.
func (r *runner) hangUp(s syscall.Signal, ended <-chan error) error {
	r.left = true
	if r.link.Get().Down {
		r.parting = "the server ends the command later"
		if kept := r.env.Info().SessionLifetime; kept != nil {
			r.parting = fmt.Sprintf("the server ends the command %s after it has noticed, unless you come back\n%s",
				cli.Spell(kept.Detached), r.machine.ReattachHint(r.env.Info(), "come back with", r.env.Session()))
		}
		return cli.ExitCode(cli.Signaled + int(s))
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangUpPatience)
	defer cancel()
	if r.process.Signal(ctx, syscall.SIGHUP) == nil {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	return cli.ExitCode(cli.Signaled + int(s))
}

// close closes the environment, and restores the terminal. Keys typed until then are discarded;
// ^C ends the wait for a server that does not answer.
func (r *runner) close() {
	closed := make(chan struct{})
	go func() { // if it takes too long, the program exits without it
		defer close(closed)
		if r.env != nil && !r.link.Get().Down {
			cli.Leave(r.env)
		}
	}()
	if r.console == nil || r.input.Keys == nil {
		<-closed
	} else {
		r.input.End(closed, r.unexpected)
		r.console.Close(r.unexpected || r.left)
	}
	if r.parting != "" {
		fmt.Fprintln(os.Stderr, r.parting)
	}
}

// SignalTimeout bounds how long the server may take to confirm a signal, before run ends. After
// signalPatience, run already ends when another signal arrives. Tests set SignalTimeout.
var SignalTimeout = 5 * time.Second

const signalPatience = time.Second

func (r *runner) pass(s syscall.Signal, passed chan<- error) {
	ctx, cancel := context.WithTimeout(context.Background(), SignalTimeout)
	defer cancel()
	passed <- r.process.Signal(ctx, s)
}

// unanswered returns the error for a signal that the server has not confirmed.
func (r *runner) unanswered(s syscall.Signal) error {
	text := fmt.Sprintf("the server has not confirmed the signal (%s); the command may continue until the server ends the session", s)
	if r.env.Info().SessionLifetime != nil {
		text += "\n" + r.machine.ReattachHint(r.env.Info(), "come back with", r.sessionLabel())
	}
	return &cli.Failure{Text: text, Code: cli.Signaled + int(s)}
}

// result converts the result of wait to the end of this program.
func (r *runner) result(err error) error {
	end, ended := errors.AsType[*client.ExitError](err)
	if s, ok := errors.AsType[cli.SignalError](err); ok {
		return cli.ExitCode(cli.Signaled + int(s.Signal))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBrokenPipe):
		return cli.ExitCode(cli.Signaled + int(syscall.SIGPIPE))
	case ended:
		return endingOf(end.Exit)
	}
	r.unexpected = true
	failure := runFailed(err)
	if lost := r.lost(err); lost != "" {
		failure = &cli.Failure{Text: lost, Code: cli.ExitFailed}
	}
	return failure
}

// lost describes the loss of a session, or returns "".
func (r *runner) lost(err error) string {
	session := r.sessionLabel()
	switch {
	case errors.Is(err, client.ErrTakenOver):
		return "another client has taken the session over, and the command continues" +
			"\n" + r.machine.ReattachHint(r.env.Info(), "watch it", "--read-only", session) + "\n" + r.machine.ReattachHint(r.env.Info(), "take it back", session)
	case errors.Is(err, client.ErrServerShutdown):
		return "the server has shut down, and has ended the command"
	case errors.Is(err, client.ErrUnknownSession):
		return "the server has ended the session, and the command with it"
	case !errors.As(err, new(*client.DisconnectedError)):
		return ""
	}
	text := cli.OneLine(err.Error())
	if r.env.Info().SessionLifetime == nil {
		return text
	}
	return text + "; the command may continue until the server ends the session\n" + r.machine.ReattachHint(r.env.Info(), "come back with", session)
}

// runFailed converts an error of run to the end of this program.
func runFailed(err error) error {
	failure := &cli.Failure{Text: cli.ErrorLine(err), Code: cli.ExitFailed}
	switch {
	case errors.As(err, new(*client.DialError)):
	case errors.Is(err, exec.ErrNotFound):
		failure.Code = cli.ExitNotFound
	case errors.Is(err, os.ErrPermission), errors.As(err, new(*client.StartError)):
		failure.Code = cli.ExitNotAllowed
	}
	return failure
}
