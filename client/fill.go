package client

import (
	"context"
	"errors"
	"time"

	"execserver/protocol"
)

// fill reads missing events from the server: after a reconnection, and when an event does
// not arrive in its turn. If it cannot read now, it makes a note: markStarted fills when the
// server knows the process, recountLocked when there is room, and a fill that runs already
// runs again.
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
	read := p.readMissing
	if p.attached {
		read = p.catchUp
	}
	p.filling = p.env.run(func() {
		for read(p.env.ctx) {
		}
	})
}

// markStarted records that the server knows the process, and whether the client has
// reconnected since it requested the start.
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

// maxGaps is how often, gapTimeout apart, the client asks for a missing event before it
// gives up: an event that the server has dropped already may still be on its way.
const maxGaps = 3

// readMissing reads up to the server's latest event, and reports whether it must be
// called again.
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

// filled records that fill has ended, and reports whether fill was called again
// meanwhile.
func (p *Process) filled(err error) (again bool) {
	if errors.Is(err, protocol.ErrInvalidRequest) || errors.As(err, new(*answerError)) {
		p.fail(err) // the server no longer knows the process, or no other answer would be better
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

// giveUp fails the process because of a gap, and terminates it, because its output is
// incomplete.
func (p *Process) giveUp(gap *GapError) {
	p.fail(gap)
	ctx, cancel := context.WithTimeout(p.env.ctx, terminateTimeout)
	defer cancel()
	_ = p.env.link.terminate(ctx, p.ID, 0) // the process has failed already
}

// readOnce reads everything after a number. The error is a *GapError if the server no
// longer has an event that was not published here.
func (p *Process) readOnce(ctx context.Context, after uint64) error {
	for {
		r, err := p.env.link.read(ctx, p.ID, after, maxRead)
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

// maxMissed bounds the events that were read although earlier ones are missing.
const maxMissed = 1 << 17

// merge merges output that was read. It reports whether so much is queued that the rest
// must wait for room.
func (p *Process) merge(r *protocol.ReadResult) (full bool, err error) {
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
	if p.pending.bytes > 2*maxRead || len(p.pending.events) > maxMissed {
		return false, p.gapLocked(r, r.Chunks[len(r.Chunks)-1].Seq)
	}
	p.behind = p.fullLocked()
	return p.behind, nil
}

// settle handles the last read: from the next number it derives the numbers of exited and
// closed.
func (p *Process) settle(r *protocol.ReadResult) error {
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
	if seq, n := p.missingLocked(last); n == 1 && r.Exit != nil && !p.knowsExitLocked() {
		p.pending.add(Event{Kind: Exited, Seq: seq, Exit: exitOf(r.Exit)})
	}
	p.publishPendingLocked()
	p.signalLocked()
	if !p.overLocked() && p.last < last {
		return p.gapLocked(r, last)
	}
	return nil
}

// missingLocked returns the first missing number up to last, and how many are missing.
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
func (p *Process) gapLocked(r *protocol.ReadResult, last uint64) error {
	from, _ := p.missingLocked(last)
	to := last
	for seq := range p.pending.events {
		if seq > from {
			to = min(to, seq-1)
		}
	}
	return &GapError{From: from, To: to, DroppedBytes: r.DroppedBytes}
}
