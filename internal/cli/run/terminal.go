package run

import (
	"time"

	"execserver/internal/cli/term"
)

// replayTime bounds the wait for the replay before attach asks the program to redraw.
const replayTime = time.Second

// begin takes the terminal, or waits while this program is in the background.
func (r *runner) begin() error {
	stayInBackground()
	return r.resume()
}

// resume takes the terminal, at first and after another program has used it.
func (r *runner) resume() error {
	switch {
	case r.console == nil:
		return nil
	case !r.console.Owned():
		r.background = time.After(term.BackgroundTime)
		return nil
	}
	r.background = nil
	if err := r.console.Raw(); err != nil {
		return err
	}
	r.screen.Restore()
	if r.input.Keys != nil {
		r.input.Escapes.Paste = term.Paste{} // another program may have read its end
		r.redraw()
		return nil
	}
	r.input.Keys = r.console.Keys()
	if r.env.Observing() {
		return nil
	}
	r.resizer = term.NewResizer(r.process, r.screen, r.console.Size, SignalTimeout)
	r.input.Write = r.process.Write
	if r.attached {
		r.input.Hold()
		r.drawing = r.awaitReplay()
	}
	return nil
}

// awaitReplay returns a channel that is closed when the replay is written, or after replayTime.
func (r *runner) awaitReplay() <-chan struct{} {
	shown := make(chan struct{})
	go func() { // until replayTime is over
		defer close(shown)
		select {
		case <-r.replayed:
		case <-time.After(replayTime):
		}
	}()
	return shown
}

// redraw asks the program to draw its screen again. Keys wait until then.
func (r *runner) redraw() {
	if r.resizer != nil {
		r.input.Hold()
		r.resizer.Redraw()
		r.hurry()
	}
}

// hurry shortens the wait for a redraw if keys are waiting.
func (r *runner) hurry() {
	if r.input.Holding() {
		r.resizer.Hurry()
	}
}

// suspend restores the terminal and stops this program. continueSignal arrives when the user
// continues it.
func (r *runner) suspend() {
	r.console.Close(true)
	if !suspend() {
		_ = r.resume()
	}
}

// stayStopped stops this program again if it was continued in the background.
func (r *runner) stayStopped() error {
	r.background = nil
	if r.console.Owned() {
		return r.resume()
	}
	r.suspend()
	return nil
}

// outOfSight reports whether the command cannot use the terminal, because this program is stopped
// or in the background.
func (r *runner) outOfSight() bool {
	return r.console != nil && (!r.console.Taken() || !r.console.Owned())
}
