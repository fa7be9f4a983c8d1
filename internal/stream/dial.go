package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Options are the options of Dial. Link is required.
type Options struct {
	// Link makes a link. It must return when its context ends, and itself give up on a machine
	// that does not answer. Close of the link must end its Read and Write, and return soon.
	Link func(context.Context) (io.ReadWriteCloser, error)
	// Lost is called, if not nil, when the stream has lost its link, and Back when it has another.
	// The stream does not go on before they return.
	Lost func(cause error)
	Back func()
}

// The first attempt to make a link comes at once, and later ones after pauses of up to an eighth of
// the time that the stream has been without a link. So it takes at most an eighth longer
// than the network.
const (
	minPause = 250 * time.Millisecond // an ssh that fails takes 5 ms of a processor
	maxPause = 30 * time.Second
)

// Dial begins a stream over a new link. ctx is for that only.
func Dial(ctx context.Context, opts Options) (*Conn, error) {
	l, err := makeLink(ctx, &opts)
	if err != nil {
		return nil, err
	}
	var c *Conn
	err = l.shake(ctx, func(h *handshake) (err error) {
		c, err = h.begin()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin a stream: %w", err)
	}
	go c.maintain(l, &opts) // until the stream has ended
	return c, nil
}

func makeLink(ctx context.Context, opts *Options) (*link, error) {
	rwc, err := opts.Link(ctx)
	if err != nil {
		return nil, err
	}
	return newLink(rwc), nil
}

// shake runs the handshake of a link, which it closes if that fails.
func (l *link) shake(ctx context.Context, run func(*handshake) error) error {
	h := newHandshake(l)
	defer h.timer.Stop()
	defer context.AfterFunc(ctx, func() { _ = l.close() })()
	err := run(h)
	if err != nil {
		_ = l.close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}

// maintain serves a link, and then others, until the stream has ended.
func (c *Conn) maintain(l *link, opts *Options) {
	var lost time.Time // the last link that was of use
	attempts := 0      // since then
	for {
		before, made := c.progress(), time.Now()
		cause := c.run(l)
		if c.alive.Err() != nil {
			return
		}
		if c.progress() != before || time.Since(made) >= silence || lost.IsZero() {
			lost, attempts = time.Now(), 0
		}
		if opts.Lost != nil {
			opts.Lost(cause)
		}
		for linked := false; !linked; attempts++ {
			if attempts > 0 && !c.pause(time.Since(lost)) {
				return
			}
			var err error
			l, err = c.relink(opts)
			if linked = err == nil; !linked && !c.goesOn(err, time.Since(lost)) {
				return
			}
		}
		if opts.Back != nil {
			opts.Back()
		}
	}
}

// progress returns a number that grows with the bytes of either direction that have arrived.
func (c *Conn) progress() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acked + c.received()
}

// pause waits before another attempt, and reports whether there should be one.
func (c *Conn) pause(elapsed time.Duration) bool {
	pause := min(max(elapsed/8, minPause), maxPause)
	select {
	case <-time.After(pause/2 + rand.N(pause/2)): // the streams of a machine should not all come at once
		return true
	case <-c.alive.Done():
		return false
	}
}

// relink makes another link, and resumes the stream over it.
func (c *Conn) relink(opts *Options) (*link, error) {
	l, err := makeLink(c.alive, opts)
	if err != nil {
		return nil, err
	}
	return l, l.shake(c.alive, func(h *handshake) error { return h.resume(c) })
}

// goesOn reports whether to try again after an error, and ends the stream otherwise.
func (c *Conn) goesOn(err error, elapsed time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if code, refused := errors.AsType[Code](err); refused {
		c.finish(code, code, false)
	} else if elapsed > c.keep {
		c.finish(fmt.Errorf("%w; the last attempt to make a link: %w", Expired, err), Expired, false)
	}
	return !c.ended
}
