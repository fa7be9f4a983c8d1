package client

import (
	"context"
	"errors"
	"time"

	"execserver/protocol"
)

// fill reads from the server what is missing between what was published and
// what it has by now: after the connection was made again, and when an event
// does not come in its turn. A process that is being started is left alone, for
// the server need not know it yet.
func (p *Process) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fillLocked()
}

func (p *Process) fillLocked() {
	if p.fullLocked() {
		p.behind = true
		return
	}
	if !p.started || p.filling || p.overLocked() {
		p.refill = true
		return
	}
	p.filling = p.env.run(func() {
		for p.readMissing(p.env.ctx) {
		}
	})
}

// markStarted says that the server knows the process, and whether the
// connection was another one when its start was asked for.
func (p *Process) markStarted(reconnected bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
	if p.refill || reconnected {
		p.refill = false
		p.fillLocked()
	}
}

// fillGap is called when events have waited for their turn for gapTimeout.
func (p *Process) fillGap() {
	p.mu.Lock()
	p.pending.timer = nil
	waiting := !p.pending.empty()
	p.mu.Unlock()
	if waiting {
		p.fill()
	}
}

// maxGaps is how often what is missing is asked for, gapTimeout apart, before it
// is given up: what the server has dropped already may still be on its way.
const maxGaps = 3

// readMissing reads up to where the server is now, and reports whether it is to
// be done again.
func (p *Process) readMissing(ctx context.Context) (again bool) {
	for gaps := 1; ; gaps++ {
		before := p.published()
		err := p.readOnce(ctx, before)
		var gap *GapError
		switch {
		case !errors.As(err, &gap):
			return p.filled(err)
		case p.published() > before:
			gaps = 1
		case gaps == maxGaps:
			p.giveUp(gap)
			return p.filled(nil)
		}
		select {
		case <-time.After(gapTimeout):
		case <-p.closedCh:
		case <-ctx.Done():
			return p.filled(nil)
		}
	}
}

// filled notes that fill has ended, and whether somebody has called it again
// meanwhile.
func (p *Process) filled(err error) (again bool) {
	if errors.Is(err, protocol.ErrInvalidRequest) {
		p.fail(err) // the server does not know the process any more
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	again = p.refill && err == nil && !p.overLocked()
	p.refill, p.filling = false, again
	return again
}

func (p *Process) published() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// giveUp fails the process because of a gap, and ends it: nobody could make
// sense of it any more.
func (p *Process) giveUp(gap *GapError) {
	p.fail(gap)
	ctx, cancel := context.WithTimeout(p.env.ctx, terminateTimeout)
	defer cancel()
	_ = p.env.back.terminate(ctx, p.ID, 0) // it has failed already
}

// readOnce reads everything after a number. The error is a *GapError when the
// server does not have something that was not published here either.
func (p *Process) readOnce(ctx context.Context, after uint64) error {
	for {
		r, err := p.env.back.read(ctx, p.ID, after, maxRead)
		switch {
		case err != nil:
			return err
		case r.Failure != nil:
			p.fail(errors.New(*r.Failure))
			return nil
		case len(r.Chunks) == 0:
			return p.settle(r)
		}
		if full, err := p.merge(r); full || err != nil {
			return err
		}
		after = r.NextSeq - 1
	}
}

// merge takes the output that was read. It reports whether so much is queued
// that the rest must wait until there is room.
func (p *Process) merge(r *readResult) (full bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range r.Chunks {
		if c.Seq > p.last && !p.overLocked() {
			p.wake = max(p.wake, c.Seq)
			p.pending.add(Event{Kind: Output, Seq: c.Seq, Stream: c.Stream, Data: c.Data})
		}
	}
	p.publishPendingLocked()
	p.signalLocked()
	if p.pending.bytes > 2*maxRead {
		return false, p.gapLocked(r, r.Chunks[len(r.Chunks)-1].Seq)
	}
	p.behind = p.fullLocked()
	return p.behind, nil
}

// settle takes a read that has no more output: it tells how far the numbers go,
// and thus which of them are those of exited and closed.
func (p *Process) settle(r *readResult) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.overLocked() || r.NextSeq == 0 || r.NextSeq-1 <= p.last {
		return nil
	}
	last := r.NextSeq - 1
	p.wake = max(p.wake, last)
	if r.Closed && !p.pending.has(last) {
		p.pending.add(Event{Kind: Closed, Seq: last})
	}
	if seq, n := p.missingLocked(last); n == 1 && r.Exited && !p.knowsExitLocked() {
		p.pending.add(Event{Kind: Exited, Seq: seq, Exit: r.exit})
	}
	p.publishPendingLocked()
	p.signalLocked()
	if !p.overLocked() && p.last < last {
		return p.gapLocked(r, last)
	}
	return nil
}

// missingLocked returns the first number up to last that is not here, and how
// many there are.
func (p *Process) missingLocked(last uint64) (first, n uint64) {
	n = last - p.last
	for seq := range p.pending.events {
		if seq <= last {
			n--
		}
	}
	for first = p.last + 1; p.pending.has(first); first++ {
	}
	return first, n
}

func (p *Process) knowsExitLocked() bool {
	for _, e := range p.pending.events {
		if e.Kind == Exited {
			return true
		}
	}
	return p.exit != nil
}

// gapLocked describes the first gap up to last.
func (p *Process) gapLocked(r *readResult, last uint64) error {
	from, _ := p.missingLocked(last)
	to := last
	for seq := range p.pending.events {
		if seq > from {
			to = min(to, seq-1)
		}
	}
	return &GapError{From: from, To: to, DroppedBytes: r.DroppedBytes}
}
