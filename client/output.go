package client

import (
	"bytes"
	"errors"
	"io"
	"reflect"
)

// Output runs the command and returns its standard output, all of it in memory. Its error
// is that of Run. If that is an *ExitError and Cmd.Stderr was nil, Output sets
// ExitError.Stderr.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil || c.p.queue[0] != nil {
		return nil, errors.New("client: Stdout already set")
	}
	var stdout bytes.Buffer
	c.Stdout = &stdout
	var stderr *headTail
	if c.Stderr == nil && c.p.queue[1] == nil && c.TTY == nil {
		stderr = &headTail{max: 64 << 10}
		c.Stderr = stderr
	}
	err := c.Run()
	var exit *ExitError
	if errors.As(err, &exit) && stderr != nil {
		exit.Stderr = stderr.bytes()
	}
	return stdout.Bytes(), err
}

// CombinedOutput runs the command and returns its standard output and standard error
// together, in the order in which the server read them, all of it in memory. Its error is
// that of Run.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.p.queue[0] != nil {
		return nil, errors.New("client: Stdout already set")
	}
	if c.Stderr != nil || c.p.queue[1] != nil {
		return nil, errors.New("client: Stderr already set")
	}
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	err := c.Run()
	return both.Bytes(), err
}

// StdoutPipe returns a pipe from the process's standard output or its terminal. Call it
// before Start. Read blocks until there is output; it returns io.EOF at the end, or an
// *ExitMissingError if the output is incomplete. Close drops the rest of the output; it
// unblocks Read, which then fails with io.ErrClosedPipe, and lets the process continue.
//
// Unlike in os/exec, Wait neither closes the pipe nor waits until it has been read: the
// output can also be read after Wait.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe("Stdout", c.Stdout, 0) }

// StderrPipe is like [Cmd.StdoutPipe], for standard error. A terminal has none.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe("Stderr", c.Stderr, 1) }

func (c *Cmd) outputPipe(name string, set io.Writer, i int) (io.ReadCloser, error) {
	switch {
	case set != nil || c.p.queue[i] != nil:
		return nil, errors.New("client: " + name + " already set")
	case c.Process != nil:
		return nil, errors.New("client: " + name + "Pipe after process started")
	}
	c.p.queue[i] = newQueue(c.p)
	c.p.queue[i].pipe = true
	return &outputPipe{q: c.p.queue[i]}, nil
}

// attach creates the queues for the output, and the goroutines that empty them.
func (c *Cmd) attach() error {
	out, err := c.Stdout, c.Stderr
	if c.followers != nil {
		if c.p.queue != [2]*queue{} {
			return errors.New("client: StdoutPipe and StderrPipe do not go with Follow and Collect")
		}
		q := newQueue(c.p)
		q.exit = true
		c.p.queue = [2]*queue{q, q}
		c.copies = append(c.copies, c.goCopy(func() error { return c.follow(q) }))
		return nil
	}
	if out != nil && c.p.queue[0] == nil {
		c.p.queue[0] = c.pass(copyTo(out))
	}
	switch {
	case err == nil || c.p.queue[1] != nil || c.TTY != nil:
	case same(out, err) && c.p.queue[0] != nil:
		c.p.queue[1] = c.p.queue[0]
	default:
		c.p.queue[1] = c.pass(copyTo(err))
	}
	return nil
}

// follow passes events to all followers and writers.
func (c *Cmd) follow(q *queue) (failure error) {
	<-c.began
	if c.Process == nil {
		return nil
	}
	writers := map[string]io.Writer{Stdout: c.Stdout, PTY: c.Stdout, Stderr: c.Stderr}
	_ = q.passOn(func(e Event) error {
		for _, f := range c.followers {
			f.event(e)
		}
		w := writers[e.Stream]
		if e.Kind != Output || w == nil || failure != nil {
			return nil
		}
		failure = copyTo(w)(e)
		return nil
	})
	for _, f := range c.followers {
		f.end()
	}
	return failure
}

// same reports whether two writers are the same.
func same(a, b io.Writer) bool {
	return a != nil && b != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// pass creates a queue whose events are passed to f, not before Start has set Process: f may
// write to the command's StdinPipe.
func (c *Cmd) pass(f func(Event) error) *queue {
	q := newQueue(c.p)
	c.copies = append(c.copies, c.goCopy(func() error {
		<-c.began
		return q.passOn(f)
	}))
	return q
}

// goCopy runs f, which copies input or output, on a goroutine, and returns a channel that
// receives its result. Wait waits for it, unless WaitDelay is over or Stdin is a file. The
// goroutine ends with the process's streams, with the Environment, or when Wait abandons
// the copy. A Read of Stdin or a Write of Stdout that blocks must return first.
func (c *Cmd) goCopy(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}
