package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"execserver/protocol"
)

// receive accepts an event that the server has sent. Events may come in any order; those that
// came before are ignored. It never blocks.
func (p *Process) receive(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.overLocked() {
		return
	}
	p.wake = max(p.wake, e.Seq)
	p.signalLocked()
	if p.attached {
		p.followLocked(e)
		return
	}
	switch {
	case e.Seq <= p.log.last:
	case e.Kind == Output && p.fullLocked():
		p.behind = true // the server keeps it until it is acknowledged
	case e.Seq == p.log.last+1:
		p.publishLocked(e)
	case !p.early.has(e.Seq):
		if p.early.add(e); p.early.trim() {
			p.fillLocked() // it reads again what was dropped, in its turn
		}
	}
	p.publishEarlyLocked()
	if !p.early.empty() {
		p.early.startTimer(p.fillGap)
	}
}

func (p *Process) publishEarlyLocked() {
	for !p.overLocked() {
		e, ok := p.early.pop(p.log.last + 1)
		if !ok {
			return
		}
		p.publishLocked(e)
	}
}

// publishLocked gives the event whose turn it is to the readers.
func (p *Process) publishLocked(e Event) {
	if e.Kind == Exited && p.exit != nil {
		p.failLocked(errExitedTwice)
		return
	}
	p.log.append(e)
	switch e.Kind {
	case Exited:
		p.exitLocked(e.Exit, e.Seq)
	case Closed:
		p.closeLocked()
		return
	}
	switch reader := p.log.reader(e); {
	case reader != nil:
		p.deliverLocked(reader, e)
	case e.Kind == Output:
		p.consumedLocked(len(e.Data))
	}
}

// followLocked accepts an event of an attached process. A number that does not follow the
// last one means that the server has evicted the events between them, or will still send
// them; readers ask the server.
func (p *Process) followLocked(e Event) {
	if e.Kind == Exited && p.exit == nil {
		p.exitLocked(e.Exit, e.Seq)
	}
	if e.Seq > p.log.last {
		p.log.append(e)
	}
	switch {
	case e.Kind == Output:
		p.consumedLocked(len(e.Data))
	case e.Kind == Closed && p.exit == nil:
		p.fillLocked() // which asks for the exit, too
	case e.Kind == Closed:
		p.closeLocked()
	}
}

func (p *Process) exitLocked(exit *Exit, seq uint64) {
	p.exit, p.exitSeq, p.ending = exit, seq, false
	close(p.exitedCh)
}

func (p *Process) closeLocked() {
	if p.exit == nil {
		p.failLocked(errClosedBeforeExit)
		return
	}
	p.closed = true
	p.finishLocked()
	p.consumedLocked(0) // acknowledge it, so that the server forgets the process
}

// fail fails the process, unless it has closed. Only the first failure counts.
func (p *Process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(err)
}

func (p *Process) failLocked(err error) {
	if p.overLocked() {
		return
	}
	p.failure = &LostError{ProcessID: p.ID, Err: err}
	p.wake++
	p.signalLocked()
	p.finishLocked()
}

func (p *Process) finishLocked() {
	if p.exit == nil {
		close(p.exitedCh)
	}
	close(p.closedCh)
	for _, c := range p.log.cursors {
		if c.retains {
			c.ready.Broadcast()
		}
	}
	p.early.clear()
	p.recountLocked()
	// While a reader has to consume events, the process is still known: the server may send them
	// again after a resume.
	if p.failure != nil || !p.env.conns.acks || p.log.consumed(p.ending) == p.log.last {
		p.env.forget(p)
	}
}

// overLocked reports whether no more events will come.
func (p *Process) overLocked() bool { return p.closed || p.failure != nil }

func (p *Process) signalLocked() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

func (p *Process) changeLocked() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// fill reads missing events from the server: after a reconnection, and when an event does
// not arrive in its turn. If it cannot read now, one of these runs it later: markStarted,
// recountLocked when there is space, or the end of the fill in progress.
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
	p.early.timer = nil
	waiting := !p.early.empty()
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
	return p.log.last
}

// giveUp fails the process because of a gap, and terminates it, because its output is
// incomplete.
func (p *Process) giveUp(gap *GapError) {
	p.fail(gap)
	ctx, cancel := context.WithTimeout(p.env.ctx, terminateTimeout)
	defer cancel()
	_ = p.env.remote.terminate(ctx, p.ID, 0) // the process has failed already
}

// readOnce reads everything after a number. The error is a *GapError if the server no
// longer has an event that was not published here.
func (p *Process) readOnce(ctx context.Context, after uint64) error {
	for {
		r, err := p.env.remote.read(ctx, p.ID, after, maxRead)
		switch {
		case err != nil:
			return err
		case r.Failure != nil:
			p.fail(errors.New(*r.Failure))
			return nil
		case len(r.Chunks) == 0:
			return p.deriveEnd(r)
		}
		if full, err := p.merge(r); full || err != nil {
			return err
		}
		after = r.NextSeq - 1
	}
}

// maxMissed bounds the events that were read although earlier ones are missing.
const maxMissed = 1 << 17

// merge merges output that was read. It reports whether the log is full, so that the rest
// must be read later.
func (p *Process) merge(r *protocol.ReadResult) (full bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range r.Chunks {
		if c.Seq > p.log.last && !p.overLocked() {
			p.wake = max(p.wake, c.Seq)
			p.early.add(Event{Kind: Output, Seq: c.Seq, Stream: c.Stream, Data: c.Data})
		}
	}
	p.publishEarlyLocked()
	p.signalLocked()
	if p.early.bytes > 2*maxRead || len(p.early.events) > maxMissed {
		return false, p.gapLocked(r, r.Chunks[len(r.Chunks)-1].Seq)
	}
	p.behind = p.fullLocked()
	return p.behind, nil
}

// deriveEnd handles the last read: from the next number it derives the numbers of exited and
// closed.
func (p *Process) deriveEnd(r *protocol.ReadResult) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.overLocked() || r.NextSeq == 0 || r.NextSeq-1 <= p.log.last {
		return nil
	}
	last := r.NextSeq - 1
	p.wake = max(p.wake, last)
	if r.Closed && !p.early.has(last) {
		p.early.add(Event{Kind: Closed, Seq: last})
	}
	if seq, n := p.missingLocked(last); n == 1 && r.Exit != nil && !p.knowsExitLocked() {
		p.early.add(Event{Kind: Exited, Seq: seq, Exit: exitOf(r.Exit)})
	}
	p.publishEarlyLocked()
	p.signalLocked()
	if !p.overLocked() && p.log.last < last {
		return p.gapLocked(r, last)
	}
	return nil
}

// missingLocked returns the first missing number up to last, and how many are missing.
func (p *Process) missingLocked(last uint64) (first, n uint64) {
	n = last - p.log.last
	for seq := range p.early.events {
		if seq <= last {
			n--
		}
	}
	for first = p.log.last + 1; p.early.has(first); first++ {
	}
	return first, n
}

func (p *Process) knowsExitLocked() bool {
	for _, e := range p.early.events {
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
	for seq := range p.early.events {
		if seq > from {
			to = min(to, seq-1)
		}
	}
	return &GapError{From: from, To: to, DroppedBytes: r.DroppedBytes}
}

// adopt takes over the state of an attached process from an answer without output.
func (p *Process) adopt(r *protocol.ReadResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.overLocked() {
		return
	}
	if r.Failure != nil {
		p.failLocked(errors.New(*r.Failure))
		return
	}
	if r.NextSeq > 0 {
		p.log.skipTo(r.NextSeq - 1)
		p.wake = max(p.wake, p.log.last)
	}
	if r.Exit != nil && p.exit == nil {
		p.exitLocked(exitOf(r.Exit), 0)
	}
	p.signalLocked()
	if r.Closed {
		p.closeLocked()
	}
}

// catchUp asks the server for the state of an attached process, and reports whether it must
// be called again.
func (p *Process) catchUp(ctx context.Context) (again bool) {
	state, err := p.env.remote.read(ctx, p.ID, maxSeq, 1)
	if err == nil {
		p.adopt(state)
	}
	return p.filled(err)
}

// decodeEvent decodes the notifications about processes; ok is false for all
// others.
func decodeEvent(method string, params json.RawMessage, data []byte) (id string, e Event, ok bool, err error) {
	id, e, ok, err = decodeAnyEvent(method, params, data)
	if ok && err == nil && (e.Seq == 0 || e.Seq > maxSeq) {
		err = fmt.Errorf("an event has the number %d; numbers are from 1 to %d", e.Seq, uint64(maxSeq))
	}
	return id, e, ok, err
}

// decodeAnyEvent is like decodeEvent, but accepts every number.
func decodeAnyEvent(method string, params json.RawMessage, data []byte) (id string, e Event, ok bool, err error) {
	switch method {
	case protocol.NotificationOutput:
		output, err := protocol.DecodeBulk[protocol.Output](params, data)
		return output.ProcessID, Event{Kind: Output, Seq: output.Seq, Stream: output.Stream, Data: output.Data}, true, err
	case protocol.NotificationExited:
		var exited protocol.Exited
		err := json.Unmarshal(params, &exited)
		return exited.ProcessID, Event{Kind: Exited, Seq: exited.Seq, Exit: &Exit{exited.ExitRecord}}, true, err
	case protocol.NotificationClosed:
		var closed protocol.Closed
		err := json.Unmarshal(params, &closed)
		return closed.ProcessID, Event{Kind: Closed, Seq: closed.Seq}, true, err
	}
	return "", Event{}, false, nil
}
