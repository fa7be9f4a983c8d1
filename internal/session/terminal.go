package session

import (
	"context"
	"sync"
	"time"

	"execserver/internal/output"
	"execserver/internal/process"
	"execserver/internal/screen"
	"execserver/protocol"
)

// The server interprets the output of a terminal when a client asks for the screen, and
// then keeps the screen for a while, so that the next request interprets only later output.
// A process whose screen is not requested costs nothing.

const (
	// screenIdle is how long a screen is kept without a request.
	screenIdle = 30 * time.Second
	// screenTurn bounds the time for which a goroutine interprets output before the next one
	// has its turn. It looks at the clock after every screenStep bytes, of which the worst
	// take some milliseconds.
	screenTurn = 5 * time.Millisecond
	screenStep = 512
	// The memory for a cell in an answer: for its text with combining characters, its style,
	// and a drawing, which may have two screens. Each counts twice, plain and encoded.
	textBytes, styledBytes, drawnBytes = 64, 192, 384
)

// terminalState is the screen of a process's terminal. The zero value has no screen yet.
type terminalState struct {
	mu   sync.Mutex
	busy chan struct{} // holds a token of the goroutine that uses the fields below; nil before the first

	screen  *screen.Screen
	at      output.Position // the end of the output that the screen shows
	omitted uint64          // bytes that were evicted before they were interpreted
	units   int             // of memory that quotas.screens counts for it
	of      *Session
	idle    *time.Timer
}

// show brings the screen up to date, and describes it.
func (t *terminalState) show(ctx context.Context, sp *sessionProcess, p protocol.ScreenParams, reserve func(bytes int) error) (*protocol.ScreenResult, error) {
	sizes, err := sp.proc.Sizes()
	if err != nil {
		return nil, refused(p.ProcessID, "show the screen of process %s: %s", err)
	}
	size := sizes[len(sizes)-1].Size
	rows, cols := int(size.Rows), int(size.Cols)
	if !screen.Fits(rows, cols) {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"show the screen of process %s: its terminal has %d rows and %d columns, the limit is %d and %d, and %d places together",
			p.ProcessID, rows, cols, screen.MaxRows, screen.MaxCols, screen.MaxCells)
	}
	cell := textBytes
	if p.Styles {
		cell += styledBytes
	}
	if p.Drawing {
		cell += drawnBytes
	}
	if err := reserve(rows*cols*cell + 4<<10); err != nil {
		return nil, err
	}
	busy := t.turns()
	select {
	case busy <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-busy }()
	t.of = sp.session
	status := sp.proc.Log.Status()
	if err := t.advance(ctx, sp.proc, sizes, status.NextSeq-1); err != nil {
		t.forget()
		return nil, err
	}
	result := t.result(p)
	result.Exit, result.Closed, result.NextSeq = status.Exit, status.Closed, status.NextSeq
	t.keep()
	return result, nil
}

// advance interprets the output up to an event.
func (t *terminalState) advance(ctx context.Context, proc *process.Process, sizes []process.SizedAt, to uint64) error {
	if t.screen == nil {
		t.at, t.omitted = output.Position{}, 0
		t.screen = screen.New(fitting(sizes, 0))
		head := proc.Log.Head(protocol.PTY)
		if err := t.feed(ctx, sizes, head); err != nil {
			return err
		}
	}
	for t.at.Seq < to {
		e, ok := proc.Log.Borrow(t.at.Seq)
		if !ok {
			break
		}
		err := t.take(ctx, sizes, e)
		proc.Log.Return(e)
		if err != nil {
			return err
		}
	}
	t.screen.Resize(fitting(sizes, t.at.Offset))
	return nil
}

// take interprets an event.
func (t *terminalState) take(ctx context.Context, sizes []process.SizedAt, e output.Event) error {
	if e.Offset > t.at.Offset {
		t.omitted += e.Offset - t.at.Offset
		t.at.Offset = e.Offset
		t.screen.Gap()
	}
	if data := e.Output.Data; len(data) > 0 {
		if err := t.feed(ctx, sizes, data); err != nil {
			return err
		}
	}
	t.at.Seq = e.Seq
	return nil
}

// feed interprets output, whenever it is its principal's turn.
func (t *terminalState) feed(ctx context.Context, sizes []process.SizedAt, data []byte) error {
	for len(data) > 0 {
		if err := t.of.quotas.drawing.Acquire(ctx, t.of.quotaKey); err != nil {
			return err
		}
		for begin := time.Now(); len(data) > 0 && time.Since(begin) < screenTurn; {
			data = data[t.step(sizes, data):]
		}
		t.of.quotas.drawing.Release(t.of.quotaKey)
	}
	return nil
}

// step interprets a little output, and returns how many bytes.
func (t *terminalState) step(sizes []process.SizedAt, data []byte) int {
	t.screen.Resize(fitting(sizes, t.at.Offset))
	n := min(len(data), screenStep)
	for _, s := range sizes {
		if s.Offset > t.at.Offset {
			n = int(min(uint64(n), s.Offset-t.at.Offset))
		}
	}
	t.screen.Write(data[:n])
	t.at.Offset += uint64(n)
	return n
}

// fitting returns the size of a terminal at an offset of its output, or an earlier size if
// that is too large for a screen.
func fitting(sizes []process.SizedAt, offset uint64) (rows, cols int) {
	for i, s := range sizes {
		r, c := int(s.Size.Rows), int(s.Size.Cols)
		if i > 0 && s.Offset > offset && rows > 0 {
			break
		}
		if screen.Fits(r, c) {
			rows, cols = r, c
		}
	}
	return rows, cols
}

// result describes the screen.
func (t *terminalState) result(p protocol.ScreenParams) *protocol.ScreenResult {
	s := t.screen
	rows, cols := s.Size()
	row, col, visible := s.Cursor()
	r := &protocol.ScreenResult{
		Size: protocol.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)},
		Rows: s.Rows(), Title: s.Title(), Alternate: s.Alternate(), OmittedBytes: t.omitted,
		Cursor: protocol.ScreenCursor{Row: row, Col: col, Visible: visible},
	}
	if p.Styles {
		r.StyledRows = s.StyledRows()
	}
	if p.Drawing {
		r.Drawing = s.Drawing()
	}
	return r
}

// keep keeps the screen for the next request, if there is memory for it.
func (t *terminalState) keep() {
	wanted := t.screen.Memory()/screenUnit + 1
	for t.units < wanted && t.of.quotas.screens.Take(t.of.quotaKey) == nil {
		t.units++
	}
	if t.units < wanted {
		t.forget()
		return
	}
	for ; t.units > wanted; t.units-- {
		t.of.quotas.screens.Release(t.of.quotaKey)
	}
	if t.idle == nil {
		t.idle = time.AfterFunc(screenIdle, t.drop)
	} else {
		t.idle.Reset(screenIdle)
	}
}

// turns returns the channel that serves as the lock of the screen.
func (t *terminalState) turns() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy == nil {
		t.busy = make(chan struct{}, 1)
	}
	return t.busy
}

// drop forgets the screen once no goroutine uses it.
func (t *terminalState) drop() {
	t.mu.Lock()
	busy := t.busy
	t.mu.Unlock()
	if busy == nil {
		return // there was no request
	}
	busy <- struct{}{}
	t.forget()
	<-busy
}

func (t *terminalState) forget() {
	for ; t.units > 0; t.units-- {
		t.of.quotas.screens.Release(t.of.quotaKey)
	}
	t.screen = nil
	if t.idle != nil {
		t.idle.Stop()
	}
}
