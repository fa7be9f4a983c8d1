package client

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"execserver/protocol"
)

// Process is a process started by a Cmd, or returned by Environment.Attach. Its methods may be
// called concurrently. Their contexts limit the call, and never kill the process.
type Process struct {
	// ID identifies the process within the session. It must not be changed.
	ID string

	env     *Environment
	tty     bool
	input   inputLock
	written func([]byte) // receives the written input; may be nil

	unfinished atomic.Bool // the last input ends in the middle of a line

	exitedCh chan struct{} // closed when the process's end is known, or it failed
	closedCh chan struct{} // closed when the process has closed or failed

	asked atomic.Bool // the request to start it may have reached the server

	piped bool // output goes to a pipe, which the caller may not read; set before the start

	attached bool          // Attach made it
	fetched  chan struct{} // closed when Attach has fetched its info, or failed
	fetchErr error         // of that; set before fetched is closed

	// mu guards the fields below. Lock it before Environment.mu.
	mu      sync.Mutex
	log     eventLog
	early   reorderBuffer
	pin     *cursor // of an attached process before its first reader, so that nothing is acknowledged; or nil
	exit    *Exit
	exitSeq uint64 // number of Exited; 0 if it is unknown
	killing bool   // the server was asked to kill the process, and has not refused
	ending  bool   // the process was killed or has exited, and exit is not known yet
	closed  bool
	failure error         // set once, never after closed
	wake    uint64        // highest number seen, plus 1 for a failure
	changed chan struct{} // closed at the next change; nil without a waiter
	started bool          // the server has confirmed the start
	filling bool          // fill runs
	refill  bool          // fill must run again, or once the process has started

	counted  int  // bytes that count in env.received
	polling  bool // pollExit is asking the server
	behind   bool // output was dropped because the log is full
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
	p.log.maxEvents, p.log.maxBytes = env.opts.ReplayEvents, env.opts.ReplayBytes
	return p
}

// Changed waits until the highest number of an event that has arrived differs from seen, and returns
// that number. If the client has lost the process, the result is one higher, so that a waiting
// caller wakes, and Read returns the error. A program that polls calls Changed between two calls of
// Read. The error is the cause of ctx.
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

// ReadResult is a part of the output that the server retains. It belongs to the caller. While Output
// is not empty, Exit is nil and Closed is false: continue to read after NextSeq-1.
type ReadResult struct {
	Output  []Event // of the kind Output, with numbers above the requested one
	NextSeq uint64  // continue to read after NextSeq-1
	Exit    *Exit   // nil until the process has exited and Output is empty
	Closed  bool    // no more output will come

	// FirstSeq is the number of the oldest retained output, and DroppedBytes is the number of
	// bytes before it. Both are 0 if the server has evicted nothing, or does not report it.
	FirstSeq, DroppedBytes uint64
}

// maxRead bounds the answers to reads.
const maxRead = 16 << 20

// Read returns retained output with event numbers greater than after, at most 16 MiB. Pass 0 to
// begin with the oldest. If there is no such event yet, Read waits for one, but no longer than wait.
// The error is a *LostError if the client has lost the process.
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
	r, err := p.env.remote.read(ctx, p.ID, after, maxRead)
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

// Signal sends a signal to the process's group. On a terminal, SIGINT, SIGQUIT and SIGTSTP go to its
// foreground process group, as if typed. After the process has closed, the error is
// os.ErrProcessDone. If the connection breaks, Signal is not repeated, and the error is an
// *InterruptedError.
//
// Every server supports os.Interrupt. Other signals need the capability processSignals; without it,
// Signal(ctx, os.Kill) calls Terminate(ctx, 0).
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
			return p.env.remote.signal(ctx, protocol.SignalParams{ProcessID: p.ID, Signal: protocol.SignalInterrupt})
		case "SIGKILL":
			return p.Terminate(ctx, 0)
		}
		return &UnsupportedError{"signal " + name, capSignals}
	}
	key := name == "SIGINT" || name == "SIGQUIT" || name == "SIGTSTP"
	return p.env.remote.signal(ctx, protocol.SignalParams{ProcessID: p.ID, Signal: name, ToForeground: p.tty && key})
}

func (p *Process) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Terminate kills the process and its descendants with SIGKILL. If grace is positive, the server
// first sends SIGTERM, and SIGKILL after grace, which is rounded down to milliseconds, and limited
// to one hour. A grace needs the capability processTerminateGraceful.
//
// Terminate returns when the server has accepted the request; Wait reports the exit. After the
// process has closed, Terminate does nothing and returns nil.
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
		return p.env.remote.terminate(ctx, p.ID, grace)
	}
	p.setKilling(true)
	err := p.env.remote.terminate(ctx, p.ID, 0)
	if err != nil {
		p.setKilling(false)
		return err
	}
	p.noteEnding()
	return nil
}

// setKilling records whether the server was asked to kill the process. From then on the
// client reads on although the process's pipes are full: a server that does not
// support acknowledgements sends its answer behind the output.
func (p *Process) setKilling(killing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killing = killing
	p.recountLocked()
}

// noteEnding records that the process was killed or has exited, although Exited has not
// arrived: the output before it may have no reader. From now on the output held for
// pipes counts as consumed, so that the server sends the rest, which is little. A reader of
// the pipes still receives it, unless it is more than maxRetained.
func (p *Process) noteEnding() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil || p.overLocked() {
		return
	}
	p.ending = true
	p.unpinLocked()
	p.recountLocked()
	if p.env.conns.acks {
		p.ackLocked()
	}
}

// pollExit asks the server whether a process has exited for which Wait waits, if no event
// has come since last while the log holds unread output. It returns the number of the last
// event.
func (p *Process) pollExit(last uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log.last != last || p.log.retained == 0 || p.polling || p.ending {
		return p.log.last
	}
	p.polling = p.env.run(func() {
		ctx, cancel := context.WithTimeout(p.env.ctx, terminateTimeout)
		defer cancel()
		r, err := p.env.remote.read(ctx, p.ID, maxSeq, 1)
		if err == nil && r.Exit != nil {
			p.noteEnding()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.polling = false
	})
	return last
}

// maxSeq is above the numbers of all events, and nothing may have a higher one.
const maxSeq = 1 << 40

// Resize changes the size of the process's terminal. It fails if the process has none. The server
// needs the capability processResize.
func (p *Process) Resize(ctx context.Context, size Size) error {
	if p == nil {
		return errNotStarted
	}
	if !p.env.has(capResize) {
		return &UnsupportedError{"resize the terminal", capResize}
	}
	return p.env.remote.resize(ctx, p.ID, size)
}

// ProcessSnapshot is the beginning and end of the output so far, as far as the server retains it.
// Streams that the process does not have are nil.
type ProcessSnapshot struct {
	Stdout, Stderr, Terminal *StreamSnapshot

	NextSeq uint64 // EventsAfter(ctx, NextSeq-1) continues after the snapshot
	Closed  bool   // no more output will come
	Exit    *Exit  // nil while the process runs
}

// StreamSnapshot is the beginning and the end of one stream. If OmittedBytes is 0, Head has
// everything.
type StreamSnapshot = protocol.StreamSnapshot

// Snapshot returns the beginning and end of each stream, at most maxBytes per stream. If maxBytes is
// 0, it returns all retained output. It consumes nothing. The server needs the capability
// processSnapshot.
func (p *Process) Snapshot(ctx context.Context, maxBytes int) (*ProcessSnapshot, error) {
	if p == nil {
		return nil, errNotStarted
	}
	if !p.env.has(capSnapshot) {
		return nil, &UnsupportedError{"take a snapshot", capSnapshot}
	}
	params := protocol.SnapshotParams{ProcessID: p.ID}
	if maxBytes > 0 {
		params.MaxBytes = new(uint64(maxBytes))
	}
	raw, err := p.env.conns.repeat(ctx, protocol.MethodSnapshot, params)
	if err != nil {
		return nil, err
	}
	var r protocol.SnapshotResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	return &ProcessSnapshot{
		Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal, NextSeq: r.NextSeq, Closed: r.Closed, Exit: exitOf(r.Exit),
	}, nil
}

// Wait waits until the process has exited. For the process of a Cmd, use Cmd.Wait instead. For a
// process returned by Attach that nobody reads, Wait acknowledges its output, so that the process
// does not block; the server may then evict that output.
//
// The error is a *LostError if the client has lost the process, or the cause of ctx.
func (p *Process) Wait(ctx context.Context) (*Exit, error) {
	if p == nil {
		return nil, errNotStarted
	}
	p.unpin()
	select {
	case <-p.exitedCh:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	exit, failure := p.outcome()
	if exit != nil {
		return exit, nil
	}
	return nil, failure
}

// Screen is the content of a terminal, as a person would see it.
type Screen struct {
	Rows, Cols int      // the size of the terminal
	Text       []string // the text of each row, without blanks at its end
	Styled     []string // the same with SGR sequences; nil unless ScreenOptions.Styles asked for it

	CursorRow, CursorCol int // counted from 0
	CursorVisible        bool

	Title     string // what the program calls its window
	Alternate bool   // the program uses the alternate screen

	// OmittedBytes is how many bytes of output the screen lacks, because the server had
	// evicted them. Unless it is 0, parts of the screen may be wrong until the program
	// draws them again.
	OmittedBytes uint64

	// Drawing brings a terminal of the same size to the state of the screen. It is nil
	// unless ScreenOptions.Drawing asked for it. Like all that a program writes, it may
	// do anything to a terminal.
	Drawing []byte

	NextSeq uint64 // EventsAfter(ctx, NextSeq-1) continues after the screen
	Closed  bool
	Exit    *Exit // nil while the process runs
}

// ScreenOptions are the options of Process.Screen.
type ScreenOptions struct {
	Styles  bool // ask for Screen.Styled
	Drawing bool // ask for Screen.Drawing
}

// Screen returns the current content of the process's terminal. It consumes nothing. If opts is nil,
// Screen returns only the text. For a process without a terminal the error is a *protocol.Error with
// the code protocol.CodeInvalidRequest. The server needs the capability processScreen.
func (p *Process) Screen(ctx context.Context, opts *ScreenOptions) (*Screen, error) {
	if p == nil {
		return nil, errNotStarted
	}
	if !p.env.has(capScreen) {
		return nil, &UnsupportedError{"show the screen of a process", capScreen}
	}
	params := protocol.ScreenParams{ProcessID: p.ID}
	if opts != nil {
		params.Styles, params.Drawing = opts.Styles, opts.Drawing
	}
	raw, err := p.env.conns.repeat(ctx, protocol.MethodScreen, params)
	if err != nil {
		return nil, err
	}
	var r protocol.ScreenResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	return &Screen{
		Rows: int(r.Size.Rows), Cols: int(r.Size.Cols), Text: r.Rows, Styled: r.StyledRows,
		CursorRow: r.Cursor.Row, CursorCol: r.Cursor.Col, CursorVisible: r.Cursor.Visible,
		Title: r.Title, Alternate: r.Alternate, OmittedBytes: r.OmittedBytes, Drawing: r.Drawing,
		NextSeq: r.NextSeq, Closed: r.Closed, Exit: exitOf(r.Exit),
	}, nil
}

// outcome returns what is known so far.
func (p *Process) outcome() (*Exit, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit, p.failure
}
