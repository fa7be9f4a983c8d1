package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"

	"execserver/protocol"
)

// fetchBytes bounds the output that a cursor reads from the server at once.
const fetchBytes = 1 << 20

// cursor is a reader of all events of a process. It takes them from the replay, and from
// the server when they are older. What it has not consumed is not acknowledged.
type cursor struct {
	p    *Process
	next uint64 // number of the first event that is not consumed; guarded by p.mu

	from   uint64  // number of the first event after batch
	at     uint64  // bytes of output before it, delivered or missing
	exact  bool    // at is known
	exited bool    // Exited comes before from
	batch  []found // not delivered yet
}

// found is an event or a *GapError.
type found struct {
	event Event
	err   error
}

// EventsAfter iterates over the events with numbers above after, in order, and ends after
// Closed. It reads from the server what the client no longer holds. It is lossless where
// the client acknowledges output, which an owner does on a server with the capability
// processAck: events are acknowledged when the iteration has passed them, so a slow loop
// delays the process, like a slow Cmd.Stdout. It never delays another process.
//
// An error of type *GapError says that the server no longer has some events; the iteration
// continues after them. Any other error is the last: an *ExitMissingError, or the cause of
// ctx.
func (p *Process) EventsAfter(ctx context.Context, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if p == nil {
			yield(Event{}, errNotStarted)
			return
		}
		c := p.enter(after)
		defer p.leave(c)
		for {
			e, err := c.read(ctx)
			if errors.Is(err, io.EOF) || !yield(e, err) {
				return
			}
			gap, ok := err.(*GapError) //nolint:errorlint // it is made here
			switch {
			case ok:
				c.consumed(gap.To, 0)
			case err != nil, e.Kind == Closed:
				return // leave consumes Closed
			default:
				c.consumed(e.Seq, len(e.Data))
			}
		}
	}
}

// Copy writes the output of the process to stdout and stderr until it has closed, from the
// oldest that is retained; a terminal has only stdout, and nil drops the output. It reads
// like EventsAfter: while a Write blocks, an owner's process blocks when it has written
// more than the server retains.
//
// The error is that of a Write, an *ExitMissingError, the cause of ctx, or, when everything
// else was copied, a *GapError about all output that the server no longer had.
func (p *Process) Copy(ctx context.Context, stdout, stderr io.Writer) error {
	var missing *GapError
	for e, err := range p.EventsAfter(ctx, 0) {
		if gap, ok := err.(*GapError); ok { //nolint:errorlint // it is made here
			missing = missing.and(gap)
			continue
		}
		if err != nil {
			return err
		}
		w := stdout
		if e.Stream == Stderr {
			w = stderr
		}
		if e.Kind != Output || w == nil {
			continue
		}
		if err := copyTo(w)(e); err != nil {
			return err
		}
	}
	if missing != nil {
		return missing
	}
	return nil
}

// and returns one error about both gaps, of which e may be nil.
func (e *GapError) and(later *GapError) *GapError {
	if e == nil {
		return later
	}
	return &GapError{From: e.From, To: later.To, DroppedBytes: e.DroppedBytes + later.DroppedBytes}
}

// enter adds a reader, which replaces the hold.
func (p *Process) enter(after uint64) *cursor {
	c := &cursor{p: p, next: after + 1, from: after + 1, exact: after == 0}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cursors = append(p.cursors, c)
	p.letGoLocked()
	return c
}

func (p *Process) leave(c *cursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(c)
}

func (p *Process) leaveLocked(c *cursor) {
	p.cursors = slices.DeleteFunc(p.cursors, func(other *cursor) bool { return other == c })
	p.consumedLocked(0, 0)
}

// consumed records that the events up to a number, the last with n bytes, are consumed.
func (c *cursor) consumed(seq uint64, n int) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.next = max(c.next, seq+1)
	c.p.consumedLocked(n, 0)
}

// read returns the next event, for which it waits. The error is io.EOF after Closed.
func (c *cursor) read(ctx context.Context) (Event, error) {
	p := c.p
	for {
		if len(c.batch) > 0 {
			next := c.batch[0]
			c.batch = c.batch[1:]
			return next.event, next.err
		}
		p.mu.Lock()
		e, held := p.replay.find(c.from)
		behind, failure, closed, changed := c.from <= p.last, p.failure, p.closed, p.changeLocked()
		p.mu.Unlock()
		switch {
		case held:
			c.deliver(e)
			continue
		case failure != nil:
			return Event{}, failure
		case behind:
			if err := c.fetch(ctx); err != nil {
				return Event{}, err
			}
			continue
		case closed:
			return Event{}, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// deliver adds an event to the batch.
func (c *cursor) deliver(e Event) {
	c.batch = append(c.batch, found{event: e})
	c.from = e.Seq + 1
	c.at += uint64(len(e.Data))
	c.exited = c.exited || e.Kind == Exited
}

// fetch reads events from the server into the batch.
func (c *cursor) fetch(ctx context.Context) error {
	p := c.p
	r, err := p.env.link.read(ctx, p.ID, c.from-1, fetchBytes)
	p.mu.Lock()
	last, closed, exit, exitSeq := p.last, p.closed, p.exit, p.exitSeq
	p.mu.Unlock()
	switch {
	case errors.Is(err, protocol.ErrInvalidRequest) && closed && exit != nil:
		// The server has forgotten the process: a while after its end, or because this
		// program's owner acknowledged it.
		r = &protocol.ReadResult{NextSeq: last + 1, Exit: &exit.ExitRecord, Closed: true, FirstSeq: last + 1}
	case errors.Is(err, protocol.ErrInvalidRequest):
		p.fail(err)
		return p.whyFailed()
	case err != nil:
		return err
	}
	for _, chunk := range r.Chunks {
		c.hole(chunk.Seq-1, r, exitSeq, false)
		if chunk.Seq == c.from {
			c.deliver(Event{Kind: Output, Seq: chunk.Seq, Stream: chunk.Stream, Data: chunk.Data})
		}
	}
	if len(r.Chunks) > 0 {
		return nil
	}
	end := max(r.NextSeq, 1) - 1
	if !r.Closed {
		c.hole(end, r, exitSeq, true)
	} else if c.from <= end {
		c.hole(end-1, r, exitSeq, true)
		if r.Exit != nil && !c.exited { // its number is among those of the evicted output
			c.deliver(Event{Kind: Exited, Seq: end - 1, Exit: exitOf(r.Exit)})
		}
		c.deliver(Event{Kind: Closed, Seq: end})
	}
	if len(c.batch) == 0 { // the server knows less than it has sent
		c.gap(last, r)
	}
	return nil
}

// hole accounts for the numbers up to to, which are not those of retained output: one may
// be that of Exited, and the others were evicted. exitSeq is its number, or 0. whole says
// that no output follows.
func (c *cursor) hole(to uint64, r *protocol.ReadResult, exitSeq uint64, whole bool) {
	if c.from > to {
		return
	}
	if exitSeq == 0 {
		exitSeq = to
		evicted := r.FirstSeq > to || r.FirstSeq == 0 && c.from < to && !whole
		if evicted { // Exited most likely has a higher number
			exitSeq = 0
		}
	}
	if r.Exit == nil || c.exited || exitSeq < c.from || exitSeq > to {
		c.gap(to, r)
		return
	}
	if exitSeq > c.from {
		c.gap(exitSeq-1, r)
	}
	c.deliver(Event{Kind: Exited, Seq: exitSeq, Exit: exitOf(r.Exit)})
	if exitSeq < to {
		c.gap(to, r)
	}
}

// gap tells that the server no longer has the events up to to.
func (c *cursor) gap(to uint64, r *protocol.ReadResult) {
	gap := &GapError{From: c.from, To: to}
	if c.exact && r.DroppedBytes > c.at {
		gap.DroppedBytes = r.DroppedBytes - c.at
		c.at = r.DroppedBytes
	}
	c.batch = append(c.batch, found{err: gap})
	c.from = to + 1
}

// whyFailed returns the failure of the process.
func (p *Process) whyFailed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}
