package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"execserver/protocol"
)

// EventKind is the kind of an Event.
type EventKind byte

// The kinds of event (PROTOCOL.md, "Events"). Every process has exactly one Exited and one
// Closed, which is its last event. Descendants may still write between the two.
const (
	Output EventKind = iota + 1 // a piece of output
	Exited                      // the process has ended
	Closed                      // all output has been delivered
)

// String returns the name of the kind in the protocol: "output", "exited" or "closed".
func (k EventKind) String() string {
	switch k {
	case Output:
		return "output"
	case Exited:
		return "exited"
	case Closed:
		return "closed"
	}
	return fmt.Sprintf("EventKind(%d)", byte(k))
}

// The streams of a process, as in Event.Stream.
const (
	Stdout = protocol.Stdout
	Stderr = protocol.Stderr
	PTY    = protocol.PTY // the terminal, which carries both standard output and standard error
)

// Event is one event of a process.
type Event struct {
	Kind EventKind
	Seq  uint64 // the number of the event; numbers start at 1 and have no gaps

	// Stream and Data are set for Output: Stdout, Stderr or PTY, and the bytes written. All
	// readers of the event share Data and must not change it.
	Stream string
	Data   []byte

	Exit *Exit // set for Exited; shared, too
}

// Exit describes how a process exited, as the server reports it (EXTENSIONS.md, "Exit record").
// Fields whose value the server does not know are zero.
//
// ExitCode is the code of the process. Unlike in package os, it is 128+n if signal n killed the
// process, and -1 only if the server did not learn it. Signal is that signal, such as "SIGKILL", and
// CoreDumped reports whether it left a core dump. EndedBy is who ended the process: "self", "client"
// (Terminate or Signal), "timeout" or "outputLimit" (Limits), "sessionExpired" or "serverShutdown".
//
// OOMKilled reports whether the kernel killed the process or a descendant for lack of memory. Rusage
// is the processor time and memory of the process and the descendants that it waited for.
// SandboxDenied reports whether a sandbox probably caused the failure.
type Exit struct{ protocol.ExitRecord }

// exitOf returns nil for a process that has not exited.
func exitOf(r *protocol.ExitRecord) *Exit {
	if r == nil {
		return nil
	}
	return &Exit{*r}
}

// Success reports whether the process exited by itself with exit code 0.
func (e *Exit) Success() bool { return e.ExitCode == 0 && e.Signal == "" }

// String returns "exit status 1" or "signal: SIGKILL", followed by details in parentheses:
// "signal: SIGKILL (out of memory)".
func (e *Exit) String() string {
	text := fmt.Sprintf("exit status %d", e.ExitCode)
	if e.Signal != "" {
		text = "signal: " + e.Signal
	}
	var more []string
	if e.CoreDumped {
		more = append(more, "core dumped")
	}
	if e.OOMKilled {
		more = append(more, "out of memory")
	}
	switch e.EndedBy {
	case "", protocol.EndedBySelf, protocol.EndedByClient:
	case protocol.EndedByTimeout:
		more = append(more, "ended by its time limit")
	case protocol.EndedByOutputLimit:
		more = append(more, "ended by its output limit")
	default:
		more = append(more, "ended by "+string(e.EndedBy))
	}
	if e.SandboxDenied {
		more = append(more, "denied by the sandbox")
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return text
}

// Events returns an iterator over the events of the process, in order, from the first that the
// client still holds: see Options.ReplayEvents. It ends after Closed. Several loops may run
// concurrently, and none delays the process or another loop.
//
// A *LaggedError reports events that the loop missed, and the loop continues. Any other error is the
// last value: a *LostError, or the cause of ctx.
//
//	for event, err := range process.Events(ctx) {
//		var lagged *client.LaggedError
//		if errors.As(err, &lagged) {
//			continue // or fetch the events by Process.Read
//		} else if err != nil {
//			return err
//		}
//		...
//	}
//
// For a process returned by Attach, Events(ctx) is the same as EventsAfter(ctx, 0).
func (p *Process) Events(ctx context.Context) iter.Seq2[Event, error] {
	if p != nil && p.attached {
		return p.EventsAfter(ctx, 0)
	}
	return func(yield func(Event, error) bool) {
		if p == nil {
			yield(Event{}, errNotStarted)
			return
		}
		for next := uint64(1); ; next++ {
			e, err := p.event(ctx, next)
			if !yield(e, err) {
				return
			}
			lagged, ok := err.(*LaggedError) //nolint:errorlint // it is made here
			switch {
			case ok:
				next = lagged.To
			case err != nil, e.Kind == Closed:
				return
			}
		}
	}
}

// event waits for the event with a number.
func (p *Process) event(ctx context.Context, seq uint64) (Event, error) {
	for {
		p.mu.Lock()
		e, last, failure, changed := p.log.from(seq), p.log.last, p.failure, p.changeLocked()
		p.mu.Unlock()
		switch {
		case e.Seq == seq && seq <= last:
			return e, nil
		case seq <= last:
			return Event{}, &LaggedError{seq, e.Seq - 1}
		case failure != nil:
			return Event{}, failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// EventsAfter returns an iterator over the events with numbers greater than after, in order. It ends
// after Closed. It reads from the server the events that the client no longer holds.
//
// If this Environment owns the session, and the server has the capability processAck, no event is
// missing. The client acknowledges an event when the loop asks for the next one, so a slow loop
// delays the process, as a slow Cmd.Stdout does. It never delays another process. An observer delays
// nothing.
//
// A *GapError reports events that the server no longer has, and the loop continues. Any other error
// is the last value: a *LostError, or the cause of ctx.
func (p *Process) EventsAfter(ctx context.Context, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if p == nil {
			yield(Event{}, errNotStarted)
			return
		}
		r := p.enter(after)
		defer p.leave(r.cursor)
		for {
			e, err := r.read(ctx)
			if errors.Is(err, io.EOF) || !yield(e, err) {
				return
			}
			gap, ok := err.(*GapError) //nolint:errorlint // it is made here
			switch {
			case ok:
				r.consumed(gap.To, 0)
			case err != nil, e.Kind == Closed:
				return // leave consumes Closed
			default:
				r.consumed(e.Seq, len(e.Data))
			}
		}
	}
}

// Copy copies the retained and all later output of the process to stdout and stderr, until the
// process has closed. The output of a terminal goes to stdout. A nil writer discards. Like a loop
// over EventsAfter, a slow Write delays the process if this Environment owns the session.
//
// The error is that of a Write, a *LostError, or the cause of ctx. If output was evicted, Copy
// copies everything else, and then returns one *GapError for all of it.
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

// fetchBytes bounds the output that an eventReader reads from the server at once.
const fetchBytes = 1 << 20

// eventReader reads all events of a process. It takes them from the log, and from the server
// when the log no longer holds them.
type eventReader struct {
	*cursor

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

// enter adds a reader, which replaces the pin.
func (p *Process) enter(after uint64) *eventReader {
	r := &eventReader{cursor: &cursor{p: p, next: after + 1}, from: after + 1, exact: after == 0}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.cursors = append(p.log.cursors, r.cursor)
	p.unpinLocked()
	return r
}

func (p *Process) leave(c *cursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(c)
}

func (p *Process) leaveLocked(c *cursor) {
	p.log.remove(c)
	p.consumedLocked(0)
}

// dropReaders lets the process end although readers of its events have not consumed them.
func (p *Process) dropReaders() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pin = nil
	p.log.cursors = slices.DeleteFunc(p.log.cursors, func(c *cursor) bool { return !c.retains })
	p.consumedLocked(0)
}

// unpin lets an attached process continue without a reader, if none has begun.
func (p *Process) unpin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unpinLocked()
}

func (p *Process) unpinLocked() {
	if p.pin != nil {
		p.leaveLocked(p.pin)
		p.pin = nil
	}
}

// consumed records that the events up to a number, the last with n bytes, are consumed.
func (r *eventReader) consumed(seq uint64, n int) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.next = max(r.next, seq+1)
	r.p.consumedLocked(n)
}

// read returns the next event, for which it waits. The error is io.EOF after Closed.
func (r *eventReader) read(ctx context.Context) (Event, error) {
	p := r.p
	for {
		if len(r.batch) > 0 {
			next := r.batch[0]
			r.batch = r.batch[1:]
			return next.event, next.err
		}
		p.mu.Lock()
		e, held := p.log.find(r.from)
		behind, failure, closed, changed := r.from <= p.log.last, p.failure, p.closed, p.changeLocked()
		p.mu.Unlock()
		switch {
		case held:
			r.deliver(e)
			continue
		case failure != nil:
			return Event{}, failure
		case behind:
			if err := r.fetch(ctx); err != nil {
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
func (r *eventReader) deliver(e Event) {
	r.batch = append(r.batch, found{event: e})
	r.from = e.Seq + 1
	r.at += uint64(len(e.Data))
	r.exited = r.exited || e.Kind == Exited
}

// fetch reads events from the server into the batch.
func (r *eventReader) fetch(ctx context.Context) error {
	p := r.p
	a, err := p.env.remote.read(withoutFailFast(ctx), p.ID, r.from-1, fetchBytes)
	p.mu.Lock()
	last, closed, exit, exitSeq := p.log.last, p.closed, p.exit, p.exitSeq
	p.mu.Unlock()
	switch {
	case errors.Is(err, protocol.ErrInvalidRequest) && closed && exit != nil:
		// The server has forgotten the process: a while after its end, or because this
		// program's owner acknowledged it.
		a = &protocol.ReadResult{NextSeq: last + 1, Exit: &exit.ExitRecord, Closed: true, FirstSeq: last + 1}
	case errors.Is(err, protocol.ErrInvalidRequest):
		p.fail(err)
		return p.whyFailed()
	case err != nil:
		return err
	}
	for _, chunk := range a.Chunks {
		r.hole(chunk.Seq-1, a, exitSeq, false)
		if chunk.Seq == r.from {
			r.deliver(Event{Kind: Output, Seq: chunk.Seq, Stream: chunk.Stream, Data: chunk.Data})
		}
	}
	if len(a.Chunks) > 0 {
		return nil
	}
	end := max(a.NextSeq, 1) - 1
	if !a.Closed {
		r.hole(end, a, exitSeq, true)
	} else if r.from <= end {
		r.hole(end-1, a, exitSeq, true)
		if a.Exit != nil && !r.exited { // its number is among those of the evicted output
			r.deliver(Event{Kind: Exited, Seq: end - 1, Exit: exitOf(a.Exit)})
		}
		r.deliver(Event{Kind: Closed, Seq: end})
	}
	if len(r.batch) == 0 { // the server knows less than it has sent
		r.gap(last, a)
	}
	return nil
}

// hole handles the missing numbers through to. At most one of them is that of Exited (exitSeq, or
// 0 if it is unknown); the others were evicted. whole means that no output follows.
func (r *eventReader) hole(to uint64, a *protocol.ReadResult, exitSeq uint64, whole bool) {
	if r.from > to {
		return
	}
	if exitSeq == 0 {
		exitSeq = to
		evicted := a.FirstSeq > to || a.FirstSeq == 0 && r.from < to && !whole
		if evicted { // Exited most likely has a higher number
			exitSeq = 0
		}
	}
	if a.Exit == nil || r.exited || exitSeq < r.from || exitSeq > to {
		r.gap(to, a)
		return
	}
	if exitSeq > r.from {
		r.gap(exitSeq-1, a)
	}
	r.deliver(Event{Kind: Exited, Seq: exitSeq, Exit: exitOf(a.Exit)})
	if exitSeq < to {
		r.gap(to, a)
	}
}

// gap records that the server has evicted the events up to a number.
func (r *eventReader) gap(to uint64, a *protocol.ReadResult) {
	gap := &GapError{From: r.from, To: to}
	if r.exact && a.DroppedBytes > r.at {
		gap.DroppedBytes = a.DroppedBytes - r.at
		r.at = a.DroppedBytes
	}
	r.batch = append(r.batch, found{err: gap})
	r.from = to + 1
}

// whyFailed returns the failure of the process.
func (p *Process) whyFailed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}
