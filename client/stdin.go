package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
)

// StdinPipe returns a pipe to the process's stdin. Call it before Start.
//
// Write returns when the server has accepted the data, as [Process.Write] does, with the context of
// the command. Close closes stdin after all writes, and acts like EOF of Cmd.Stdin: it needs the
// capability processCloseStdin, except on a terminal. Unlike in os/exec, Wait does not close the
// pipe.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	switch {
	case c.Stdin != nil || c.stdin:
		return nil, errors.New("client: Stdin already set")
	case c.Process != nil:
		return nil, errors.New("client: StdinPipe after process started")
	}
	c.stdin = true
	return stdinPipe{c}, nil
}

type stdinPipe struct{ c *Cmd }

// Write implements io.Writer.
func (s stdinPipe) Write(b []byte) (int, error) {
	if s.c.Process == nil {
		return 0, errNotStarted
	}
	return inputWriter{s.c.ctx, s.c.p}.Write(b)
}

// Close implements io.Closer.
func (s stdinPipe) Close() error {
	if s.c.Process == nil {
		return errNotStarted
	}
	return s.c.endStdin(s.c.ctx)
}

// copyStdin copies Stdin to the process.
func (c *Cmd) copyStdin() {
	ctx, cancel := context.WithCancel(withoutFailFast(context.WithoutCancel(c.ctx)))
	c.stopStdin = cancel
	input, release := c.Stdin, func() {}
	if file, ok := input.(*os.File); ok {
		input, release = stoppable(ctx, file)
	}
	c.stdinCopy = c.goCopy(func() error {
		defer release()
		_, err := io.Copy(inputWriter{ctx, c.p}, input)
		if endErr := c.endStdin(ctx); err == nil {
			err = endErr
		}
		if errors.Is(err, ErrStdinClosed) || ctx.Err() != nil {
			return nil // as with a pipe without a reader
		}
		return err
	})
}

// endOfInput is the character that ends the input of a terminal (VEOF).
var endOfInput = []byte{4}

func (c *Cmd) endStdin(ctx context.Context) error {
	if c.TTY != nil {
		if err := c.p.Write(ctx, endOfInput); err != nil || !c.p.unfinished.Load() {
			return err
		}
		return c.p.Write(ctx, endOfInput) // the first ends the line
	}
	return c.p.CloseStdin(ctx)
}

// inputWriter writes to a process.
type inputWriter struct {
	ctx context.Context
	p   *Process
}

// Write implements io.Writer.
func (w inputWriter) Write(b []byte) (int, error) {
	if err := w.p.Write(w.ctx, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// ReadFrom implements io.ReaderFrom, with larger blocks than io.Copy. It reads on while
// the server has not answered earlier writes; see writes. When it returns without an error,
// the server has accepted everything.
func (w inputWriter) ReadFrom(r io.Reader) (total int64, err error) {
	input := w.p.input
	if err := input.lock(w.ctx); err != nil {
		return 0, err
	}
	*input.copied = writes{p: w.p, recycles: true}
	for err == nil {
		// The lock is free while Read blocks, for other writes and for resend.
		buf := input.copied.buffer()
		input.unlock()
		n, readErr := r.Read(buf)
		if err := input.lock(w.ctx); err != nil {
			return total, err
		}
		if n > 0 {
			err = input.copied.add(w.ctx, buf[:n])
		}
		if err == nil {
			total += int64(n)
			err = readErr
		}
	}
	defer input.unlock()
	if err == io.EOF {
		err = nil
	}
	err = cmp.Or(input.copied.await(w.ctx), err)
	*input.copied = writes{}
	return total, err
}
