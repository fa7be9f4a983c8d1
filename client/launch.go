package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"execserver/internal/sys"
	"execserver/transport"
)

// stopTimeout is how long a launched server may take to end by itself after it was asked
// to.
const stopTimeout = 2 * time.Second

// exitTimeout is how long a server that has closed its output may take to exit, so
// that the error can say how it ended. On a busy machine that is not at once.
const exitTimeout = 2 * time.Second

// Launch starts command, which must be or reach an exec-server on its stdin and stdout, for example
// exec.Command("ssh", "box", "exec-server", "--listen", "stdio"). ctx limits only the start and the
// handshake. The error is a *DialError, or another error if opts is invalid.
//
// Launch sets command.Stdin and Stdout, and the caller must not use command afterwards. The server's
// standard error goes to command.Stderr; if that is nil, errors include its beginning and end. On
// Unix the server gets its own process group, so an interrupt from the keyboard does not reach it.
// Close sends SIGTERM to the group, and SIGKILL two seconds later.
//
// The Environment cannot reconnect; "exec-server connect" does so by itself. Options.RecoveryTimeout, Token, TokenFile, TLS and ServerUser
// have no effect.
func Launch(ctx context.Context, command *exec.Cmd, opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	s := &launched{command: command}
	m := &connManager{name: command.Path, dial: s.start}
	if _, err := e.open(ctx, m); err != nil {
		return nil, s.quote(err)
	}
	return e, nil
}

// launched is a server that is a child of this program.
type launched struct {
	command *exec.Cmd
	stderr  *headTail     // nil if the caller receives it
	ended   chan struct{} // closed when it has ended, and before it is reaped where the system allows
	reaping sync.Once
	err     error // how it ended, once it is reaped

	mu     sync.Mutex
	reaped bool // the number of its group may be reused
}

// start starts the server and makes the connection.
func (s *launched) start(context.Context) (transport.Conn, error) {
	if s.command.Stderr == nil {
		s.stderr = &headTail{max: 4 << 10}
		s.command.Stderr = s.stderr
	}
	// Do not wait for descendants of the server that keep its standard error open.
	if s.command.WaitDelay == 0 {
		s.command.WaitDelay = stopTimeout
	}
	stdin, err := s.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, theirs, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return nil, err
	}
	defer theirs.Close()
	sys.EnlargePipe(stdin)
	sys.EnlargePipe(stdout)
	s.command.Stdout = theirs
	ownGroup(s.command)
	if err := s.command.Start(); err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, fmt.Errorf("failed to spawn exec-server: %w", err)
	}
	s.ended = make(chan struct{})
	go func() { // ends with the server, which stop kills
		defer close(s.ended)
		if !awaitEnd(s.command.Process) {
			s.reaping.Do(func() {
				s.err = s.command.Wait()
				s.markReaped()
			})
		}
	}()
	stop := sync.OnceValue(func() error {
		err := stdin.Close()
		s.stop()
		return errors.Join(err, stdout.Close())
	})
	streams := &launchedStreams{stdout, stdin, s}
	return transport.NewLines("stdio", streams, streams, stop, 0), nil
}

// stop ends the server, with what it has left in its group, and reaps it.
func (s *launched) stop() {
	s.signal(terminateGroup)
	select {
	case <-s.ended:
	case <-time.After(stopTimeout):
		s.signal(killGroup)
		<-s.ended
	}
	s.reap()
}

// signal signals the server's group, unless the server is reaped: then the kernel may have
// reused its number.
func (s *launched) signal(send func(*os.Process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.reaped {
		send(s.command.Process)
	}
}

// reap reaps the server, which has ended.
func (s *launched) reap() {
	s.reaping.Do(func() {
		s.markReaped()
		s.err = s.command.Wait()
	})
}

func (s *launched) markReaped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reaped = true
}

// launchedStreams are a server's output and input. At their end they report how the server
// ended.
type launchedStreams struct {
	r io.Reader
	w io.Writer
	s *launched
}

// Read implements io.Reader.
func (l *launchedStreams) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if err != nil {
		err = l.s.explain(err)
	}
	return n, err
}

// Write implements io.Writer.
func (l *launchedStreams) Write(b []byte) (int, error) {
	n, err := l.w.Write(b)
	if err != nil {
		err = l.s.explain(err)
	}
	return n, err
}

// quote adds the server's standard error to an error that does not have it.
func (s *launched) quote(err error) error {
	dial, ok := err.(*DialError) //nolint:errorlint // it is made here
	if !ok || s.stderr == nil {
		return err
	}
	said := strings.TrimSpace(string(s.stderr.bytes()))
	if said == "" || strings.Contains(dial.Err.Error(), said) {
		return err
	}
	dial.Err = fmt.Errorf("%w; the server said: %s", dial.Err, said)
	return dial
}

// explain returns how the server ended, if it has.
func (s *launched) explain(err error) error {
	select {
	case <-s.ended:
	case <-time.After(exitTimeout):
		return err
	}
	s.signal(terminateGroup) // the descendants that it has left
	s.reap()
	text := "the server exited"
	if s.err != nil {
		text += ": " + s.err.Error()
	}
	if s.stderr != nil {
		if said := s.stderr.bytes(); len(said) > 0 {
			text += fmt.Sprintf("; it said: %s", said)
		}
	}
	return errors.New(text)
}
