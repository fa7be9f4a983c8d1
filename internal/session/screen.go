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
// then keeps the screen for a while, so that the next request interprets only what came
// since. Nothing happens for a process whose screen nobody wants.

const (
	// screenIdle is how long a screen is kept that nobody asks for.
	screenIdle = 30 * time.Second
	// screenTurn is how long output is interpreted before others have their turn, and
	// screenStep how much of it between two looks at the clock. The worst output costs
	// some milliseconds a step.
	screenTurn = 5 * time.Millisecond
	screenStep = 512
	// The memory for a cell in an answer: of its text with marks, with its style, and in a
	// drawing, which may have two screens. Each is there twice, as it is and encoded.
	textBytes, styledBytes, drawnBytes = 64, 192, 384
)

// picture is the screen of a process. The zero value has none yet.
type picture struct {
	mu   sync.Mutex
	busy chan struct{} // has a place for whoever uses the fields below; nil before the first

	screen  *screen.Screen
	at      output.Position // what the screen shows
	omitted uint64          // bytes that it misses
	units   int             // counted in quotas.screens for it
	of      *Session
	idle    *time.Timer
}

// Screen serves process/screen. It stops when ctx ends. reserve is as in Read.
func (s *Session) Screen(ctx context.Context, p protocol.ScreenParams, reserve func(bytes int) error) (*protocol.ScreenResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	sizes, err := e.proc.Sizes()
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
	v := &e.picture
	busy := v.turns()
	select {
	case busy <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-busy }()
	v.of = s
	status := e.proc.Log.Status()
	err = v.advance(ctx, e.proc, sizes, status.NextSeq-1)
	if err != nil {
		v.forget()
		return nil, err
	}
	result := v.result(p)
	result.Exit, result.Closed, result.NextSeq = status.Exit, status.Closed, status.NextSeq
	v.keep()
	return result, nil
}

// advance interprets the output up to an event.
func (v *picture) advance(ctx context.Context, proc *process.Process, sizes []process.SizedAt, to uint64) error {
	if v.screen == nil {
		v.at, v.omitted = output.Position{}, 0
		v.screen = screen.New(fitting(sizes, 0))
		head := proc.Log.Beginning(protocol.PTY)
		if err := v.feed(ctx, sizes, head); err != nil {
			return err
		}
	}
	for v.at.Seq < to {
		e, ok := proc.Log.Borrow(v.at.Seq)
		if !ok {
			break
		}
		err := v.take(ctx, sizes, e)
		proc.Log.Return(e)
		if err != nil {
			return err
		}
	}
	v.screen.Resize(fitting(sizes, v.at.Offset))
	return nil
}

// take interprets an event.
func (v *picture) take(ctx context.Context, sizes []process.SizedAt, e output.Event) error {
	if e.Offset > v.at.Offset {
		v.omitted += e.Offset - v.at.Offset
		v.at.Offset = e.Offset
		v.screen.Gap()
	}
	if data := e.Output.Data; len(data) > 0 {
		if err := v.feed(ctx, sizes, data); err != nil {
			return err
		}
	}
	v.at.Seq = e.Seq
	return nil
}

// feed interprets output, whenever it is its principal's turn.
func (v *picture) feed(ctx context.Context, sizes []process.SizedAt, data []byte) error {
	for len(data) > 0 {
		if err := v.of.quotas.drawing.Acquire(ctx, v.of.quotaKey); err != nil {
			return err
		}
		for begin := time.Now(); len(data) > 0 && time.Since(begin) < screenTurn; {
			data = data[v.step(sizes, data):]
		}
		v.of.quotas.drawing.Release(v.of.quotaKey)
	}
	return nil
}

// step interprets a little output, and returns how many bytes.
func (v *picture) step(sizes []process.SizedAt, data []byte) int {
	v.screen.Resize(fitting(sizes, v.at.Offset))
	n := min(len(data), screenStep)
	for _, s := range sizes {
		if s.Offset > v.at.Offset {
			n = int(min(uint64(n), s.Offset-v.at.Offset))
		}
	}
	v.screen.Write(data[:n])
	v.at.Offset += uint64(n)
	return n
}

// fitting returns the size that a terminal had at a place in its output, or before, if it
// was too large for a screen.
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
func (v *picture) result(p protocol.ScreenParams) *protocol.ScreenResult {
	s := v.screen
	rows, cols := s.Size()
	row, col, visible := s.Cursor()
	r := &protocol.ScreenResult{
		Size: protocol.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)},
		Rows: s.Rows(), Title: s.Title(), Alternate: s.Alternate(), OmittedBytes: v.omitted,
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
func (v *picture) keep() {
	wanted := v.screen.Memory()/screenUnit + 1
	for v.units < wanted && v.of.quotas.screens.Take(v.of.quotaKey) == nil {
		v.units++
	}
	if v.units < wanted {
		v.forget()
		return
	}
	for ; v.units > wanted; v.units-- {
		v.of.quotas.screens.Release(v.of.quotaKey)
	}
	if v.idle == nil {
		v.idle = time.AfterFunc(screenIdle, v.drop)
	} else {
		v.idle.Reset(screenIdle)
	}
}

// turns returns the channel of those who take turns with the picture.
func (v *picture) turns() chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy == nil {
		v.busy = make(chan struct{}, 1)
	}
	return v.busy
}

// drop forgets the screen when nobody uses it.
func (v *picture) drop() {
	v.mu.Lock()
	busy := v.busy
	v.mu.Unlock()
	if busy == nil {
		return // nobody has asked for it
	}
	busy <- struct{}{}
	v.forget()
	<-busy
}

func (v *picture) forget() {
	for ; v.units > 0; v.units-- {
		v.of.quotas.screens.Release(v.of.quotaKey)
	}
	v.screen = nil
	if v.idle != nil {
		v.idle.Stop()
	}
}
