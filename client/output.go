package client

import (
	"bytes"
	"errors"
	"io"
	"reflect"
)

// Output runs the command and returns its standard output. Of an *ExitError,
// Stderr is set if the command's was nil.
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

// CombinedOutput runs the command and returns its standard output and standard
// error in one, in the order in which the server read them.
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

// StdoutPipe returns a pipe from the process's standard output, or its terminal.
// Unlike with os/exec what has been written can be read after Wait, too. A Read
// ends with io.EOF, or an *ExitMissingError when the output is cut off.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe("Stdout", c.Stdout, 0) }

// StderrPipe is StdoutPipe for the standard error.
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

// attach makes the queues that output goes to, and what empties them.
func (c *Cmd) attach() error {
	out, err := c.Stdout, c.Stderr
	if c.followers != nil {
		if c.p.queue != [2]*queue{} {
			return errors.New("client: StdoutPipe and StderrPipe do not go with Follow and Collect")
		}
		q := newQueue(c.p)
		q.exit = true
		c.p.queue = [2]*queue{q, q}
		c.copies = append(c.copies, c.copy(func() error { return c.follow(q) }))
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

// follow passes events on to all followers and the writers.
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

// same reports whether two writers are one.
func same(a, b io.Writer) bool {
	return a != nil && b != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// pass makes a queue whose events are passed on.
func (c *Cmd) pass(f func(Event) error) *queue {
	q := newQueue(c.p)
	c.copies = append(c.copies, c.copy(func() error { return q.passOn(f) }))
	return q
}

// copy runs f on a goroutine, which Wait waits for.
func (c *Cmd) copy(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// awaitCopies waits for the copying of output to end, which the end of the
// process has told it to.
func (c *Cmd) awaitCopies() (err error) {
	for _, done := range c.copies {
		if e := <-done; err == nil {
			err = e
		}
	}
	return err
}
