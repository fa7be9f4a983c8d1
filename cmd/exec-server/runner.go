package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"execserver/internal/cli/terminal"

	"execserver/client"
	"execserver/internal/cli"
)

// runner is one process elsewhere and its connections with this program.
type runner struct {
	env     *client.Environment // nil before it is open
	process *client.Process
	wait    func() error // until the process has ended and its output has been passed on
	cancel  context.CancelCauseFunc
	endless io.WriteCloser // stdin that cannot be closed; nil if Cmd.Stdin is used
	link    *terminal.LinkMonitor
	notice  *terminal.LinkNotice // nil where a screen has a status line

	where   *where
	keeping *keeping
	program string // of the command
	parting string // what the person is told at the end; "": nothing

	attached bool               // the session is older than this program, and outlives it
	session  client.SessionInfo // of an attached process
	shown    *client.Screen     // what a watcher's terminal shows first; nil: all output
	replayed chan struct{}      // closed when its output until the attachment has been passed on

	// A person's terminal; nil if there is none.
	console *terminal.Console
	screen  *terminal.Screen
	input   *terminal.InputForwarder
	resizer *terminal.Resizer

	drawing    <-chan struct{}  // receives when an attached program should draw its screen
	background <-chan time.Time // receives when another job has had the terminal for a moment

	left       bool // the person has left
	unexpected bool // the person has not seen the end come
}

// run waits for the command to end, and forwards signals and keys meanwhile.
func (r *runner) run(signals <-chan os.Signal) error {
	if r.console != nil {
		defer r.console.CloseOnPanic()
		if err := r.begin(); err != nil {
			return runFailed(err)
		}
		defer func() { r.resizer.End() }() // it may begin later
	} else {
		r.notice = &terminal.LinkNotice{Out: os.Stderr, Link: r.link}
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
			case r.outOfSight(): // the command's person wants to be rid of it
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

// look tells the person about the link.
func (r *runner) look() {
	r.notice.Look()
	if r.input != nil && r.input.Look() {
		r.redraw()
	}
}

// do carries out a command of the person. done says that it ends this program.
func (r *runner) do(command byte, ended <-chan error) (done bool, err error) {
	switch command {
	case terminal.KeyLeave, terminal.KeyDetach:
		switch {
		case r.attached && (command == terminal.KeyLeave || r.env.Observing() || r.session.Keep > 0):
			return true, r.leaveAttached(0)
		case command == terminal.KeyLeave:
			return true, r.hangUp(syscall.SIGHUP, ended)
		}
		if err := r.detach(); err != nil {
			r.screen.Print("\r\ncannot detach: " + cli.ErrorLine(err) + "\r\n")
			return false, nil
		}
		return true, nil
	case terminal.KeyHelp:
		r.screen.Print(terminal.EscapeHelp(r.input.Escapes.Char, r.attached, r.env.Observing()))
	case terminal.KeySuspend:
		r.suspend()
	}
	return false, nil
}

// hangUpPatience is how long a process may take to end after SIGHUP, when the person has
// left, until it is killed.
const hangUpPatience = time.Second

// hangUp ends the process because the person has left, as the end of a terminal does. s is
// how they have said so.
func (r *runner) hangUp(s syscall.Signal, ended <-chan error) error {
	r.left = true
	if r.link.Get().Down {
		r.parting = "the server ends the command later"
		if kept := r.env.Info().SessionLifetime; kept != nil {
			r.parting = fmt.Sprintf("the server ends the command %s after it has noticed, unless you come back\n%s",
				cli.Spell(kept.Detached), r.where.comeBack(r.env.Info(), "come back with", r.env.Session()))
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

// close closes the environment, and gives the terminal back. Keys that come before are
// nobody's; ^C ends the wait for a server that does not answer.
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

// signalTimeout is how long the server may take to confirm a signal. Then run ends. After
// signalPatience it already ends when another signal arrives.
var signalTimeout = 5 * time.Second

const signalPatience = time.Second

func (r *runner) pass(s syscall.Signal, passed chan<- error) {
	ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
	defer cancel()
	passed <- r.process.Signal(ctx, s)
}

// unanswered returns the end of run after a signal that it could not forward.
func (r *runner) unanswered(s syscall.Signal) error {
	text := fmt.Sprintf("the server has not taken the signal (%s); the command may go on there until the server ends the session", s)
	if r.env.Info().SessionLifetime != nil {
		text += "\n" + r.where.comeBack(r.env.Info(), "come back with", r.sessionLabel())
	}
	return &runFailure{text, cli.Signaled + int(s)}
}

// result converts the result of Wait to the result of this program.
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
		failure = &runFailure{lost, exitFailed}
	}
	return failure
}

// lost says what has happened to a session that this program has lost, or returns "".
func (r *runner) lost(err error) string {
	session := r.sessionLabel()
	switch {
	case errors.Is(err, client.ErrTakenOver):
		return "somebody else has taken the session over, and the command goes on there" +
			"\n" + r.where.comeBack(r.env.Info(), "watch it", "--read-only", session) + "\n" + r.where.comeBack(r.env.Info(), "take it back", session)
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
	return text + "; the command may go on there until the server ends the session\n" + r.where.comeBack(r.env.Info(), "come back with", session)
}

// runFailed converts an error to the end of run.
func runFailed(err error) error {
	failure := &runFailure{cli.ErrorLine(err), exitFailed}
	switch {
	case errors.As(err, new(*client.DialError)):
	case errors.Is(err, exec.ErrNotFound):
		failure.code = exitNotFound
	case errors.Is(err, os.ErrPermission), errors.As(err, new(*client.StartError)):
		failure.code = exitNotAllowed
	}
	return failure
}
