package client

import (
	"context"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"execserver/protocol"
)

// Bounds of what is held for one process besides its replay.
const (
	maxPendingEvents = 256     // events that arrived before their turn
	maxPendingBytes  = 1 << 20 // of their output

)

// Process is a process started by a Cmd, or one of Environment.Attach. Its methods may be
// called concurrently. Contexts bound requests, never the process.
type Process struct {
	// ID identifies the process within the session. It must not be changed.
	ID string

	env     *Environment
	tty     bool
	queue   [2]*queue // of stdout or the terminal, and of stderr; nil drops the output
	input   inputLock
	written func([]byte) // receives the written input; may be nil

	unfinished atomic.Bool // the last input ends in the middle of a line

	exitedCh chan struct{} // closed when the process's end is known, or it failed
	closedCh chan struct{} // closed when the process has closed or failed

	asked atomic.Bool // the request to start it may have reached the server

	attached     bool          // Attach made it; its readers are cursors
	introduced   chan struct{} // closed when Attach knows about it
	introduction error         // why it does not; set before introduced is closed

	// mu guards the fields below. Lock it before Environment.mu.
	mu      sync.Mutex
	last    uint64 // number of the last published event
	pending pending
	replay  replay
	exit    *Exit
	exitSeq uint64 // number of Exited; 0 if it is unknown
	killing bool   // the server was asked to kill the process, and has not refused
	ending  bool   // the process was killed or has exited, and exit is not known yet
	closed  bool
	failure error         // set once, never after closed
	wake    uint64        // highest number seen, plus 1 for a failure
	changed chan struct{} // closed at the next change; nil if nobody waits
	started bool          // the server has confirmed the start
	filling bool          // fill runs
	refill  bool          // fill must run again, or once the process has started

	cursors []*cursor // readers of all events
	hold    *cursor   // of an attached process that nobody has read yet; one of cursors, or nil

	queued   int  // bytes in queues
	counted  int  // the part of queued that counts in env.intake
	asking   bool // unstick is asking the server
	behind   bool // output was dropped because too much is queued
	unacked  int  // bytes consumed since the last acknowledgement
	acked    uint64
	ackTimer *time.Timer
}

func newProcess(env *Environment) *Process {
	p := &Process{
		env:      env,
		input:    newInputLock(),
		exitedCh: make(chan struct{}),
		closedCh: make(chan struct{}),
	}
	p.replay.maxEvents, p.replay.maxBytes = env.opts.ReplayEvents, env.opts.ReplayBytes
	return p
}

// insert accepts events in any order, and ignores those that were published before. It
// never blocks.
func (p *Process) insert(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.insertLocked(e)
	p.publishPendingLocked()
	if !p.pending.empty() {
		p.pending.startTimer(p.fillGap)
	}
}

func (p *Process) insertLocked(e Event) {
	if p.attached {
		p.takeLocked(e)
		return
	}
	if p.overLocked() {
		return
	}
	p.wake = max(p.wake, e.Seq)
	p.signalLocked()
	switch {
	case e.Seq <= p.last:
	case e.Kind == Output && p.fullLocked():
		p.behind = true // the server keeps it until it is acknowledged
	case e.Seq == p.last+1:
		p.publishLocked(e)
	case !p.pending.hold(e):
		// Drop what is beyond the bound; fill reads it again in its turn.
		p.fillLocked()
	}
}

func (p *Process) publishPendingLocked() {
	for !p.overLocked() {
		e, ok := p.pending.pop(p.last + 1)
		if !ok {
			return
		}
		p.publishLocked(e)
	}
}

// publishLocked publishes the event whose turn it is.
func (p *Process) publishLocked(e Event) {
	p.last = e.Seq
	p.replay.add(e)
	switch e.Kind {
	case Output:
		q := p.queue[0]
		if e.Stream == Stderr {
			q = p.queue[1]
		}
		if q == nil {
			p.consumedLocked(len(e.Data), 0)
		} else {
			q.pushLocked(e)
		}
	case Exited:
		if p.exit != nil {
			p.failLocked(errExitedTwice)
			return
		}
		p.exitLocked(e.Exit, e.Seq)
		if q := p.queue[0]; q != nil && q.exit {
			q.pushLocked(e)
		}
	case Closed:
		p.closeLocked()
	}
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
	p.failure = &ExitMissingError{ProcessID: p.ID, Err: err}
	p.wake++
	p.signalLocked()
	p.finishLocked(p.failure)
}

func (p *Process) finishLocked(end error) {
	if p.exit == nil {
		close(p.exitedCh)
	}
	close(p.closedCh)
	for _, q := range p.queue {
		if q != nil {
			q.endLocked(end)
		}
	}
	p.pending.clear()
	p.recountLocked()
	p.env.forget(p)
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

// Events iterates over the events of the process in order, from the first that the client
// still holds: see Options.ReplayEvents. It ends after Closed. Several iterations may run
// concurrently. None of them delays the process or another one.
//
// An error of type *LaggedError says that the client no longer holds some events, because
// the reader was too slow or too late; the iteration continues after them. Any other error
// is the last: an *ExitMissingError, or the cause of ctx.
//
// For a process of Attach it is EventsAfter(ctx, 0).
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
		first := p.replay.first()
		switch {
		case seq <= p.last && first > 0 && seq >= first:
			defer p.mu.Unlock()
			return p.replay.get(seq), nil
		case seq <= p.last && first > 0:
			defer p.mu.Unlock()
			return Event{}, &LaggedError{seq, first - 1}
		case seq <= p.last:
			defer p.mu.Unlock()
			return Event{}, &LaggedError{seq, p.last}
		case p.failure != nil:
			defer p.mu.Unlock()
			return Event{}, p.failure
		case p.closed:
			defer p.mu.Unlock()
			return Event{}, &LaggedError{seq, p.last}
		}
		changed := p.changeLocked()
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// Changed waits until the process's counter differs from seen, and returns the counter. It
// is the highest number of an event that has arrived, plus one if the process has failed
// in the client. A program that polls with Read calls Changed between two calls. The error
// is the cause of ctx.
func (p *Process) Changed(ctx context.Context, seen uint64) (uint64, error) {
	if p == nil {
		return 0, errNotStarted
	}
	for {
		p.mu.Lock()
		wake, changed := p.wake, p.changeLocked()
		p.mu.Unlock()
		if wake != seen {
			return wake, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return wake, context.Cause(ctx)
		}
	}
}

// ReadResult is what the server retains of a process. It belongs to the caller. Exit and
// Closed are set only if Output is empty; otherwise read on.
type ReadResult struct {
	Output  []Event // of the kind Output, with numbers above the requested one
	NextSeq uint64  // continue to read after NextSeq-1
	Exit    *Exit   // nil while the process runs
	Closed  bool    // no more output will come

	// FirstSeq is the number of the oldest retained output, and DroppedBytes how many
	// bytes of output came before it. Both are 0 if the server evicted nothing or does not
	// report it.
	FirstSeq, DroppedBytes uint64
}

// maxRead bounds the answers to reads.
const maxRead = 16 << 20

// Read asks the server for the output after the event with the number after, up to 16 MiB;
// 0 asks for all retained output (PROTOCOL.md, "process/read"). If there is no event after
// that number yet, Read first waits for one, no longer than wait. If the process has
// failed in the client, the error is an *ExitMissingError.
func (p *Process) Read(ctx context.Context, after uint64, wait time.Duration) (*ReadResult, error) {
	if p == nil {
		return nil, errNotStarted
	}
	if wait > 0 {
		// Some servers would serve nothing else while this request waits.
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		p.waitAfter(waitCtx, after)
		cancel()
	}
	p.mu.Lock()
	failure := p.failure
	p.mu.Unlock()
	if failure != nil {
		return nil, failure
	}
	r, err := p.env.link.read(ctx, p.ID, after, maxRead)
	if err != nil {
		return nil, err
	}
	result := &ReadResult{
		NextSeq: r.NextSeq, FirstSeq: r.FirstSeq, DroppedBytes: r.DroppedBytes,
		Output: make([]Event, len(r.Chunks)),
	}
	if len(r.Chunks) == 0 {
		result.Exit, result.Closed = exitOf(r.Exit), r.Closed
	}
	for i, c := range r.Chunks {
		result.Output[i] = Event{Kind: Output, Seq: c.Seq, Stream: c.Stream, Data: c.Data}
	}
	return result, nil
}

func (p *Process) waitAfter(ctx context.Context, after uint64) {
	for {
		p.mu.Lock()
		over, changed := p.wake > after || p.overLocked(), p.changeLocked()
		p.mu.Unlock()
		if over {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Signal sends a signal to the process's group (PROTOCOL.md, "process/signal"). On a
// terminal, the signals of its keys (SIGINT, SIGQUIT, SIGTSTP) go to its foreground group.
//
// Every server supports os.Interrupt. Other signals need the capability processSignals;
// without it, os.Kill is Terminate. After the process has closed, the error is
// os.ErrProcessDone. If the connection breaks, Signal does not repeat the request; the
// error is a *DisconnectedError.
func (p *Process) Signal(ctx context.Context, sig os.Signal) error {
	if p == nil {
		return errNotStarted
	}
	if p.isClosed() {
		return os.ErrProcessDone
	}
	name, err := signalName(sig)
	if err != nil {
		return err
	}
	if !p.env.has(capSignals) {
		switch name {
		case "SIGINT":
			return p.env.link.signal(ctx, protocol.SignalParams{ProcessID: p.ID, Signal: protocol.SignalInterrupt})
		case "SIGKILL":
			return p.Terminate(ctx, 0)
		}
		return &UnsupportedError{"signal " + name, capSignals}
	}
	key := name == "SIGINT" || name == "SIGQUIT" || name == "SIGTSTP"
	return p.env.link.signal(ctx, protocol.SignalParams{ProcessID: p.ID, Signal: name, ToForeground: p.tty && key})
}

func (p *Process) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Terminate ends the process and its descendants: with SIGKILL at once, or, if grace is
// not 0, with SIGTERM, and SIGKILL after that time (PROTOCOL.md, "process/terminate"). A
// grace is in milliseconds, at most an hour, and needs the capability
// processTerminateGraceful. Terminate returns when the server has accepted the request;
// Wait reports the end of the process. After the process has closed, Terminate does
// nothing and returns nil.
func (p *Process) Terminate(ctx context.Context, grace time.Duration) error {
	if p == nil {
		return errNotStarted
	}
	if p.isClosed() {
		return nil
	}
	if grace > 0 && !p.env.has(capTerminateGraceful) {
		return &UnsupportedError{"terminate gracefully", capTerminateGraceful}
	}
	if grace > 0 {
		return p.env.link.terminate(ctx, p.ID, grace)
	}
	p.setKilling(true)
	err := p.env.link.terminate(ctx, p.ID, 0)
	if err != nil {
		p.setKilling(false)
		return err
	}
	p.noteEnding()
	return nil
}

// setKilling records whether the server was asked to kill the process. From then on the
// client reads on although nobody empties the process's pipes: a server that does not
// support acknowledgements sends its answer behind the output.
func (p *Process) setKilling(killing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killing = killing
	p.recountLocked()
}

// noteEnding records that the process was killed or has exited, although Exited has not
// arrived: nobody may be reading the output before it. From now on the output that waits in
// pipes counts as consumed, so that the server sends the rest, which is little. A reader of
// the pipes still receives it, unless more than maxQueuedAcked waits.
func (p *Process) noteEnding() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil || p.overLocked() {
		return
	}
	p.ending = true
	p.letGoLocked()
	p.recountLocked()
	if p.env.acks {
		p.ackLocked()
	}
}

// unstick asks the server whether a process has exited for which Wait waits, if no event
// has come since last while unread output waits here. It returns the number of the last
// event.
func (p *Process) unstick(last uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != last || p.queued == 0 || p.asking || p.ending {
		return p.last
	}
	p.asking = p.env.run(func() {
		ctx, cancel := context.WithTimeout(p.env.ctx, terminateTimeout)
		defer cancel()
		r, err := p.env.link.read(ctx, p.ID, farSeq, 1)
		if err == nil && r.Exit != nil {
			p.noteEnding()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking = false
	})
	return last
}

// farSeq is above the numbers of all events, and nothing may have a higher one.
const farSeq = 1 << 40

// Resize changes the size of the process's terminal (PROTOCOL.md, "process/resize"). It
// needs the capability processResize, and fails without a terminal.
func (p *Process) Resize(ctx context.Context, size Size) error {
	if p == nil {
		return errNotStarted
	}
	if !p.env.has(capResize) {
		return &UnsupportedError{"resize the terminal", capResize}
	}
	return p.env.link.resize(ctx, p.ID, size)
}
