package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"execserver/client"
)

// Exit codes of the commands that run a program, when the end of the program does not decide.
// They are those of timeout(1), env(1) and shells.
const (
	ExitTimeout    = 124
	ExitFailed     = 125
	ExitNotAllowed = 126
	ExitNotFound   = 127
)

// Signaled is added to the number of a signal for the code of a program that it has ended.
const Signaled = 128

// ExitCode is the error of a command that ends the program with a code and without a
// message.
type ExitCode int

func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Failure is an error that ends the program with a code other than 1.
type Failure struct {
	Text string
	Code int
}

func (e *Failure) Error() string { return e.Text }

// Report prints the error of a command line, and returns the code with which the program
// ends: 0 for nil, 1 for a failure, 2 for an invalid command line, or that of an ExitCode or
// a Failure.
func Report(err error) int {
	if err == nil {
		return 0
	}
	if wrong, ok := errors.AsType[*UsageError](err); ok {
		fmt.Fprint(os.Stderr, wrong.Text())
		return 2
	}
	if code, ok := errors.AsType[ExitCode](err); ok {
		return int(code)
	}
	fmt.Fprintf(os.Stderr, "Error: %s\n", PrintableLines(err.Error()))
	if failure, ok := errors.AsType[*Failure](err); ok {
		return failure.Code
	}
	return 1
}

// SignalError is the cause of a context that a signal has ended.
type SignalError struct{ Signal syscall.Signal }

func (e SignalError) Error() string { return e.Signal.String() }

// UntilSignal returns a context that a signal ends, with a SignalError as its cause. A
// second signal ends the program.
func UntilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, os.Interrupt, syscall.SIGTERM} {
		if !signal.Ignored(s) { // as under nohup
			signal.Notify(signals, s)
		}
	}
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(SignalError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// IgnoreBrokenPipes makes a write to a closed stdout or stderr fail instead of killing the
// program. It catches the signal, because children would inherit an ignored one.
func IgnoreBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// CloseTimeout bounds how long the program waits at its end for a server that does not
// answer the close.
const CloseTimeout = 5 * time.Second

// Leave closes an environment before the program exits.
func Leave(env *client.Environment) {
	closed := make(chan struct{})
	go func() { // if it takes too long, the program exits without it
		defer close(closed)
		_ = env.Close()
	}()
	select {
	case <-closed:
	case <-time.After(CloseTimeout):
	}
}

// Each calls work for each argument of a command. It prints an error, continues with the next
// argument, and returns ExitCode(1) at the end.
func Each(ctx context.Context, env *client.Environment, args []string, work func(arg string) error) error {
	var failed error
	for _, arg := range args {
		err := work(arg)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || env.Err() != nil || IsBrokenPipe(err) {
			return err
		}
		if !errors.As(err, new(ExitCode)) { // a nested Each has printed its errors
			fmt.Fprintf(os.Stderr, "Error: %s\n", ErrorLine(err))
		}
		failed = ExitCode(1)
	}
	return failed
}
