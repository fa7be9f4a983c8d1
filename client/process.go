package client

import (
	"context"
	"io"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"execserver/protocol"
)

// Bounds of what is held for one process besides its replay.
const (
	maxPendingEvents = 256     // that came before their turn
	maxPendingBytes  = 1 << 20 // of their output

)

// Process is a process that was started by a Cmd. All methods may be called
// concurrently. Contexts bound requests, never the process.
type Process struct {
	// ID is the process's name in the protocol.
	ID string

	env     *Environment
	tty     bool
	queue   [2]*queue // of stdout or the terminal, and of stderr; nil: dropped
	input   inputLock
	written func([]byte) // told what was written; nil: nobody

	unfinished atomic.Bool // the input written ends in the middle of a line

	exitedCh chan struct{} // closed when it is known how it ended, or failed
	closedCh chan struct{} // closed when closed, or failed

	asked atomic.Bool // its start may have reached the server

	// mu guards the fields below. It is taken before Environment.mu.
	mu      sync.Mutex
	last    uint64 // number of the event published last
	pending pending
	replay  replay
	exit    *Exit
	ending  bool // it was killed, or has exited, and exit is not known yet
	closed  bool
	failure error         // set once, never after closed
	wake    uint64        // highest number noticed, plus 1 for a failure
	changed chan struct{} // closed at the next change; nil when nobody waits
	started bool          // the server has said so
	filling bool          // fill runs
	refill  bool          // and shall run again, or once the process is started

	queued   int  // bytes in queues
	counted  int  // of them, those that count in env.intake
	asking   bool // unstick asks
	behind   bool // output was left out, because too much is queued
	taken    int  // bytes done with since the last acknowledgement
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

// insert takes an event, in whatever order they come; those that were published
// before do not count. It never blocks.
func (p *Process) insert(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.insertLocked(e)
	p.publishPendingLocked()
	if !p.pending.empty() {
		p.pending.since(p.fillGap)
	}
}

func (p *Process) insertLocked(e Event) {
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
		// What is beyond the bound is left out, and read again in its turn.
		p.fillLocked()
	}
}

func (p *Process) publishPendingLocked() {
	for !p.overLocked() {
		e, ok := p.pending.take(p.last + 1)
		if !ok {
			return
		}
		p.publishLocked(e)
	}
}

// publishLocked passes on the event whose turn it is.
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
		p.exit, p.ending = e.Exit, false
		close(p.exitedCh)
		if q := p.queue[0]; q != nil && q.exit {
			q.pushLocked(e)
		}
	case Closed:
		p.closed = true
		p.finishLocked(io.EOF)
		p.consumedLocked(0, 0) // so that it is acknowledged, and the server forgets the process
	}
}

// fail ends the process for everybody here, if it has not closed. Only the
// first failure counts.
func (p *Process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	p.queuedLocked(0)
	p.env.forget(p)
}

// overLocked reports whether nothing more will come.
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

// Events iterates over what happens to the process, in order and without gaps:
// first over what is replayed, then over what comes. It ends after Closed. An
// error of type *LaggedError says that the reader was too slow or too late for
// some events, and the iteration goes on; any other error is the last: an
// *ExitMissingError, or the cause of ctx.
func (p *Process) Events(ctx context.Context) iter.Seq2[Event, error] {
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

// Changed waits until the process's counter differs from seen, and returns it:
// the highest number noticed, also of events whose turn has not come, and one
// more after a failure. It is for those who poll with Read.
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

// ReadResult is what the server retains of a process. As long as there is Output,
// Exit and Closed are not told: read on.
type ReadResult struct {
	Output  []Event // with numbers above the one asked for
	NextSeq uint64  // read on after NextSeq-1
	Exit    *Exit   // nil while it runs
	Closed  bool    // there will be no more

	// FirstSeq is the number of the oldest output retained, DroppedBytes how
	// much went before; 0 when nothing was dropped or the server does not
	// tell.
	FirstSeq, DroppedBytes uint64
}

// maxRead bounds the answers to reads.
const maxRead = 16 << 20

// Read asks the server for the output after a number, 0 for all that is
// retained, up to 16 MiB (PROTOCOL.md, "process/read"). With a wait it waits that long
// for something to happen after the number. A process that has failed here
// fails every Read.
func (p *Process) Read(ctx context.Context, after uint64, wait time.Duration) (*ReadResult, error) {
	if p == nil {
		return nil, errNotStarted
	}
	if wait > 0 {
		// Waiting at the server would keep some of them from doing anything
		// else.
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
	r, err := p.env.back.read(ctx, p.ID, after, maxRead)
	if err != nil {
		return nil, err
	}
	result := &ReadResult{
		NextSeq: r.NextSeq, FirstSeq: r.FirstSeq, DroppedBytes: r.DroppedBytes,
		Output: make([]Event, len(r.Chunks)),
	}
	if len(r.Chunks) == 0 {
		result.Exit, result.Closed = r.exit, r.Closed
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

// Signal sends a signal to the process's group, os.Interrupt on every server,
// others where the capability processSignals is announced; os.Kill is Terminate
// elsewhere. On a terminal the signals of its keys (SIGINT, SIGQUIT, SIGTSTP)
// go to its foreground group. After the process has closed the error is
// os.ErrProcessDone. A signal that is under way when the connection breaks is
// not repeated, and the error is a *DisconnectedError.
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
			return p.env.back.signal(ctx, protocol.Signal{ProcessID: p.ID, Signal: protocol.SignalInterrupt})
		case "SIGKILL":
			return p.Terminate(ctx, 0)
		}
		return &UnsupportedError{"signal " + name, capSignals}
	}
	key := name == "SIGINT" || name == "SIGQUIT" || name == "SIGTSTP"
	return p.env.back.signal(ctx, protocol.Signal{ProcessID: p.ID, Signal: name, ToForeground: p.tty && key})
}

func (p *Process) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Terminate ends the process and its descendants: with SIGKILL at once, or, if
// grace is not 0, with SIGTERM and after that time SIGKILL, where the
// capability processTerminateGraceful is announced. It returns when the server
// has taken the request; that the process is over is told by Wait. After the
// process has closed it does nothing (PROTOCOL.md, "process/terminate").
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
	err := p.env.back.terminate(ctx, p.ID, grace)
	if err == nil && grace <= 0 {
		p.end()
	}
	return err
}

// end is called when the process has been killed, or has exited, and nobody may be
// taking the output that comes before the exit. From now on what waits in pipes
// counts as taken: there is not much more. Whoever reads them gets it still.
func (p *Process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil || p.overLocked() {
		return
	}
	p.ending = true
	p.queuedLocked(0)
	if p.env.acks {
		p.ackLocked()
	}
}

// unstick asks whether a process has exited that is waited for, if nothing has
// come of it since the event last, for output waits here that nobody takes. It
// returns the number of the last event.
func (p *Process) unstick(last uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != last || p.queued == 0 || p.asking || p.ending {
		return p.last
	}
	p.asking = p.env.run(func() {
		ctx, cancel := context.WithTimeout(p.env.ctx, terminateTimeout)
		defer cancel()
		r, err := p.env.back.read(ctx, p.ID, farSeq, 1)
		if err == nil && r.exit != nil {
			p.end()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking = false
	})
	return last
}

// farSeq is above the number of every event.
const farSeq = 1 << 40

// Resize changes the size of the process's terminal, where the capability
// processResize is announced.
func (p *Process) Resize(ctx context.Context, size Size) error {
	if p == nil {
		return errNotStarted
	}
	if !p.env.has(capResize) {
		return &UnsupportedError{"resize the terminal", capResize}
	}
	return p.env.back.resize(ctx, p.ID, size)
}
