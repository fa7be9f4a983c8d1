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

	"execserver/transport"
)

// stopTimeout is how long a server that was launched may take to end by itself
// when it is told to.
const stopTimeout = 2 * time.Second

// lastWordsTimeout is how long a server that has closed its output may take to
// exit, so that it can be said how.
const lastWordsTimeout = 200 * time.Millisecond

// Launch starts a server and speaks with it over its stdin and stdout, such as
// exec.Command("ssh", "box", "exec-server", "--listen", "stdio"). ctx bounds
// the start and the handshake. The server's standard error goes to
// command.Stderr; if that is nil its last words are kept for the error. On
// Unix the server gets a process group of its own, to which Close sends SIGTERM and, two
// seconds later, SIGKILL. There is no second connection: when the server is gone,
// everything in the Environment fails.
func Launch(ctx context.Context, command *exec.Cmd, opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	s := &launched{command: command}
	l := &link{env: e, name: command.Path, dial: s.start}
	if _, err := e.open(ctx, l); err != nil {
		return nil, s.quote(err)
	}
	return e, nil
}

// launched is a server that is our child.
type launched struct {
	command *exec.Cmd
	stderr  *headTail // nil: the caller's
	gone    chan struct{}
	err     error // how it ended; set before gone is closed
}

// start starts the server and makes the connection.
func (s *launched) start(context.Context) (transport.Conn, error) {
	if s.command.Stderr == nil {
		s.stderr = &headTail{max: 4 << 10}
		s.command.Stderr = s.stderr
	}
	// Descendants of the server that keep its standard error shall not keep us.
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
	s.command.Stdout = theirs
	ownGroup(s.command)
	if err := s.command.Start(); err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, fmt.Errorf("failed to spawn exec-server: %w", err)
	}
	s.gone = make(chan struct{})
	go func() {
		defer close(s.gone)
		s.err = s.command.Wait()
	}()
	stop := sync.OnceValue(func() error {
		err := stdin.Close()
		s.stop()
		return errors.Join(err, stdout.Close())
	})
	words := &lastWords{stdout, stdin, s}
	return transport.NewLines("JSON-RPC message from exec-server stdio", words, words, stop, 0), nil
}

// stop ends the server and waits for it.
func (s *launched) stop() {
	terminateGroup(s.command.Process)
	select {
	case <-s.gone:
	case <-time.After(stopTimeout):
		killGroup(s.command.Process)
		<-s.gone
	}
}

// lastWords are a server's output and input, whose end is explained by how the
// server ended.
type lastWords struct {
	r io.Reader
	w io.Writer
	s *launched
}

// Read implements io.Reader.
func (l *lastWords) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if err != nil {
		err = l.s.explain(err)
	}
	return n, err
}

// Write implements io.Writer.
func (l *lastWords) Write(b []byte) (int, error) {
	n, err := l.w.Write(b)
	if err != nil {
		err = l.s.explain(err)
	}
	return n, err
}

// quote adds to an error what the server has said, unless that tells it already.
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

// explain says how the server ended, if it has.
func (s *launched) explain(err error) error {
	select {
	case <-s.gone:
	case <-time.After(lastWordsTimeout):
		return err
	}
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
