package client

import (
	"context"
	"errors"
	"io"
	"os"
)

// StdinPipe returns a pipe to the process's stdin. A Write returns when the
// server has taken the data. Close closes stdin after it, for which the server
// needs the capability processCloseStdin; on a terminal it types the byte 4, and again
// after an unfinished line.
// Wait does not close it.
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
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	c.stopStdin = cancel
	input, release := c.Stdin, func() {}
	if file, ok := input.(*os.File); ok {
		input, release = stoppable(ctx, file)
	}
	c.stdinCopy = c.copy(func() error {
		defer release()
		_, err := io.Copy(inputWriter{ctx, c.p}, input)
		if endErr := c.endStdin(ctx); err == nil {
			err = endErr
		}
		if errors.Is(err, ErrStdinClosed) || ctx.Err() != nil {
			return nil // as with a pipe that nobody reads
		}
		return err
	})
}

// endOfInput is what a terminal takes for the end of what is typed (VEOF).
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

// ReadFrom implements io.ReaderFrom, with larger pieces than io.Copy's.
func (w inputWriter) ReadFrom(r io.Reader) (total int64, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, readErr := r.Read(buf)
		if n > 0 {
			if err := w.p.Write(w.ctx, buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		switch {
		case readErr == io.EOF:
			return total, nil
		case readErr != nil:
			return total, readErr
		}
	}
}
