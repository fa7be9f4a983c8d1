package term

import (
	"context"
	"time"

	"execserver/client"
)

// Resizer gives the terminal of a process the size of the local terminal. One goroutine does
// that, so that the last size wins.
type Resizer struct {
	process *client.Process
	screen  *Screen
	size    func() client.Size
	wanted  chan bool     // true: the program must draw its screen again
	typing  chan struct{} // receives when keys wait for that
	settled chan struct{} // receives when it has been done
	limit   time.Duration // for an answer of the server
	stop    context.CancelFunc
}

// NewResizer starts the goroutine, which ends with End. limit bounds a request.
func NewResizer(process *client.Process, screen *Screen, size func() client.Size, limit time.Duration) *Resizer {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Resizer{process, screen, size, make(chan bool, 1), make(chan struct{}, 1), make(chan struct{}, 1), limit, cancel}
	go r.run(ctx) // until stop
	return r
}

// End ends the goroutine. r may be nil.
func (r *Resizer) End() {
	if r != nil {
		r.stop()
	}
}

// Resize sets the current size of the local terminal.
func (r *Resizer) Resize() { r.want(false) }

// Redraw makes the program draw its screen again, by making the terminal smaller for a moment.
// Then the channel of Done receives.
func (r *Resizer) Redraw() {
	for _, c := range []chan struct{}{r.typing, r.settled} { // from before
		select {
		case <-c:
		default:
		}
	}
	r.want(true)
}

// Done returns a channel that receives after Redraw, or nil.
func (r *Resizer) Done() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.settled
}

// Hurry shortens a redraw, because keys wait for it.
func (r *Resizer) Hurry() {
	select {
	case r.typing <- struct{}{}:
	default:
	}
}

func (r *Resizer) want(redraw bool) {
	if r == nil {
		return
	}
	select {
	case earlier := <-r.wanted:
		redraw = redraw || earlier
	default:
	}
	r.wanted <- redraw // only one goroutine sends
}

func (r *Resizer) run(ctx context.Context) {
	for {
		select {
		case redraw := <-r.wanted:
			if !redraw {
				_ = r.set(ctx, r.size()) // the terminal of a server that cannot resize has a fixed size
				continue
			}
			r.drawAgain(ctx)
			select {
			case r.settled <- struct{}{}:
			default:
			}
		case <-ctx.Done():
			return
		}
	}
}

// smaller is how long each size lasts at least, so that the program notices. A program that owns
// the whole screen gets up to drawTime to look, because one that looks too late sees the old size
// and draws nothing. Once keys wait, it gets typingTime more at most.
const (
	smaller    = 50 * time.Millisecond
	drawTime   = 5 * time.Second
	typingTime = 2 * time.Second
)

// drawAgain makes the terminal smaller until the program has noticed, and then restores the size
// until the program has noticed that. If keys arrived together with a new size, an editor might
// erase its answer to them, and a pager might lose them. A program that owns the whole screen
// loses a column: with a row less it might scroll to show the cursor.
func (r *Resizer) drawAgain(ctx context.Context) {
	patience, cancel := context.WithTimeout(ctx, drawTime)
	defer cancel()
	go func() { // until cancel
		select {
		case <-r.typing:
			time.AfterFunc(typingTime, cancel)
		case <-patience.Done():
		}
	}()
	size, whole := r.size(), r.screen.whole()
	switch {
	case whole && size.Cols > 1:
		size.Cols--
	case size.Rows > 1:
		size.Rows--
	default:
		_ = r.set(ctx, size)
		return
	}
	r.drawAt(ctx, size, whole, patience)
	r.drawAt(ctx, r.size(), whole, patience)
}

// drawAt sets the size and waits until the program has noticed.
func (r *Resizer) drawAt(ctx context.Context, size client.Size, whole bool, patience context.Context) {
	select {
	case <-r.screen.Written: // earlier
	default:
	}
	if r.set(ctx, size) != nil {
		return // the terminal of a server that cannot resize has a fixed size
	}
	if whole {
		select {
		case <-r.screen.Written:
		case <-patience.Done():
		}
	}
	select {
	case <-time.After(smaller):
	case <-ctx.Done():
	}
}

func (r *Resizer) set(ctx context.Context, size client.Size) error {
	if size.Rows == 0 || size.Cols == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	return r.process.Resize(ctx, size)
}
