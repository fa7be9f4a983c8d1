package main

import (
	"context"
	"time"

	"execserver/client"
)

// sizer gives the terminal of a process the size of this program's terminal. One goroutine
// does it, so that the last size is the one that stays.
type sizer struct {
	process *client.Process
	screen  *screen
	size    func() client.Size
	wanted  chan bool     // true: the program must draw its screen again
	typing  chan struct{} // receives when keys wait for that
	settled chan struct{} // receives when it has been done
	limit   time.Duration // for an answer of the server
	stop    context.CancelFunc
}

func newSizer(process *client.Process, screen *screen, size func() client.Size, limit time.Duration) *sizer {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sizer{process, screen, size, make(chan bool, 1), make(chan struct{}, 1), make(chan struct{}, 1), limit, cancel}
	go s.run(ctx) // until stop
	return s
}

// end ends the goroutine, if there is one.
func (s *sizer) end() {
	if s != nil {
		s.stop()
	}
}

func (s *sizer) resize() { s.want(false) }

// redraw makes the program draw its screen again: the terminal becomes smaller for a
// moment. Then done's channel receives.
func (s *sizer) redraw() {
	for _, c := range []chan struct{}{s.typing, s.settled} { // from before
		select {
		case <-c:
		default:
		}
	}
	s.want(true)
}

// done returns a channel that receives after redraw, or nil.
func (s *sizer) done() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.settled
}

// hurry ends the wait for a program that may not draw anything: a person is typing.
func (s *sizer) hurry() {
	select {
	case s.typing <- struct{}{}:
	default:
	}
}

func (s *sizer) want(redraw bool) {
	if s == nil {
		return
	}
	select {
	case earlier := <-s.wanted:
		redraw = redraw || earlier
	default:
	}
	s.wanted <- redraw // only one goroutine sends
}

func (s *sizer) run(ctx context.Context) {
	for {
		select {
		case redraw := <-s.wanted:
			if !redraw {
				_ = s.set(ctx, s.size()) // the terminal of a server that cannot resize has a fixed size
				continue
			}
			s.drawAgain(ctx)
			select {
			case s.settled <- struct{}{}:
			default:
			}
		case <-ctx.Done():
			return
		}
	}
}

// smaller is how long the terminal stays at a size at least, so that the program notices.
// One that owns the whole screen gets up to drawTime: a program that comes to look at the
// size only when it is the old one again draws nothing. It gets no more than typingTime
// from then on when keys wait.
const (
	smaller    = 50 * time.Millisecond
	drawTime   = 5 * time.Second
	typingTime = 2 * time.Second
)

// drawAgain makes the terminal smaller until the program has noticed, and then as large as
// before until the program has noticed that. If keys arrived together with a new size, an
// editor might wipe away what it answers to them, and a pager lose them. A program that
// owns the whole screen loses a column: with a row less it might scroll, to show the
// cursor.
func (s *sizer) drawAgain(ctx context.Context) {
	patience, cancel := context.WithTimeout(ctx, drawTime)
	defer cancel()
	go func() { // until cancel
		select {
		case <-s.typing:
			time.AfterFunc(typingTime, cancel)
		case <-patience.Done():
		}
	}()
	size, whole := s.size(), s.screen.whole()
	switch {
	case whole && size.Cols > 1:
		size.Cols--
	case size.Rows > 1:
		size.Rows--
	default:
		_ = s.set(ctx, size)
		return
	}
	s.drawAt(ctx, size, whole, patience)
	s.drawAt(ctx, s.size(), whole, patience)
}

// drawAt sets the size and waits until the program has noticed.
func (s *sizer) drawAt(ctx context.Context, size client.Size, whole bool, patience context.Context) {
	select {
	case <-s.screen.written: // earlier
	default:
	}
	if s.set(ctx, size) != nil {
		return // the terminal of a server that cannot resize has a fixed size
	}
	if whole {
		select {
		case <-s.screen.written:
		case <-patience.Done():
		}
	}
	select {
	case <-time.After(smaller):
	case <-ctx.Done():
	}
}

func (s *sizer) set(ctx context.Context, size client.Size) error {
	if size.Rows == 0 || size.Cols == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	return s.process.Resize(ctx, size)
}
