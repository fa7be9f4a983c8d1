package client

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"sync"
)

// Output runs the command and returns its standard output. The error is as for Run. If it is an
// *ExitError and Cmd.Stderr was nil, Output sets ExitError.Stderr.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil || c.readers[0] != nil {
		return nil, errors.New("client: Stdout already set")
	}
	var stdout bytes.Buffer
	c.Stdout = &stdout
	var stderr *headTail
	if c.Stderr == nil && c.readers[1] == nil && c.TTY == nil {
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

// CombinedOutput runs the command and returns its standard output and standard error, in the order
// in which the server read them. The error is as for Run.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.readers[0] != nil {
		return nil, errors.New("client: Stdout already set")
	}
	if c.Stderr != nil || c.readers[1] != nil {
		return nil, errors.New("client: Stderr already set")
	}
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	err := c.Run()
	return both.Bytes(), err
}

// StdoutPipe returns a pipe from the process's standard output or its terminal. Call it before
// Start. Read returns io.EOF at the end, or a *LostError if the output is incomplete.
//
// Unlike in os/exec, Wait neither closes the pipe nor waits until it has been read: you may read it
// after Wait. Close discards the rest of the output and unblocks Read, which fails with
// io.ErrClosedPipe. The process then continues; it gets no SIGPIPE.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe("Stdout", c.Stdout, 0) }

// StderrPipe is like [Cmd.StdoutPipe], for standard error. A terminal has none.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe("Stderr", c.Stderr, 1) }

func (c *Cmd) outputPipe(name string, set io.Writer, i int) (io.ReadCloser, error) {
	switch {
	case set != nil || c.readers[i] != nil:
		return nil, errors.New("client: " + name + " already set")
	case c.Process != nil:
		return nil, errors.New("client: " + name + "Pipe after process started")
	}
	c.readers[i] = c.p.addReader(&cursor{stdout: i == 0, stderr: i == 1, pipe: true})
	return &outputPipe{r: c.readers[i]}, nil
}

// attach adds the readers of the output, and their goroutines.
func (c *Cmd) attach() error {
	out, err := c.Stdout, c.Stderr
	if c.followers != nil {
		if c.readers != [2]*cursor{} {
			return errors.New("client: StdoutPipe and StderrPipe do not go with Follow and Collect")
		}
		r := c.p.addReader(&cursor{stdout: true, stderr: true, exited: true})
		c.readers = [2]*cursor{r, r}
		c.copies = append(c.copies, c.goCopy(func() error { return c.follow(r) }))
		return nil
	}
	if out != nil && c.readers[0] == nil {
		c.readers[0] = c.pass(&cursor{stdout: true}, out)
	}
	switch {
	case err == nil || c.readers[1] != nil || c.TTY != nil:
	case same(out, err) && c.readers[0] != nil:
		c.readers[1] = c.readers[0]
		c.readers[1].stderr = true
	default:
		c.readers[1] = c.pass(&cursor{stderr: true}, err)
	}
	return nil
}

// follow passes events to all followers and writers.
func (c *Cmd) follow(r *cursor) (failure error) {
	<-c.began
	if c.Process == nil {
		return nil
	}
	writers := map[string]io.Writer{Stdout: c.Stdout, PTY: c.Stdout, Stderr: c.Stderr}
	_ = r.passOn(func(e Event) error {
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

// pass adds a reader, and passes its output to w, not before Start has set Process: w may
// write to the command's StdinPipe.
func (c *Cmd) pass(r *cursor, w io.Writer) *cursor {
	c.p.addReader(r)
	c.copies = append(c.copies, c.goCopy(func() error {
		<-c.began
		return r.passOn(copyTo(w))
	}))
	return r
}

// copyTo returns a function that writes output to w.
func copyTo(w io.Writer) func(Event) error {
	return func(e Event) error {
		n, err := w.Write(e.Data)
		if err == nil && n < len(e.Data) {
			err = io.ErrShortWrite
		}
		return err
	}
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

// outputPipe is the result of StdoutPipe and StderrPipe. It needs no goroutine.
type outputPipe struct {
	r    *cursor
	mu   sync.Mutex // one Read at a time
	at   Event      // the event being read
	rest []byte     // of its data
}

// Read implements io.Reader.
func (o *outputPipe) Read(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.rest) == 0 {
		e, err := o.r.wait()
		if err != nil {
			return 0, err
		}
		if o.at, o.rest = e, e.Data; len(o.rest) == 0 {
			o.r.done(e)
		}
	}
	n := copy(b, o.rest)
	o.rest = o.rest[n:]
	if len(o.rest) == 0 {
		o.r.done(o.at)
	}
	return n, nil
}

// Close implements io.Closer. The process's further output is dropped.
func (o *outputPipe) Close() error {
	o.r.abandon()
	return nil
}
