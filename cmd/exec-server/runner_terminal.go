package main

import (
	"time"

	"execserver/internal/cli/terminal"
)

// replayTime is how long an attached program waits for its output from before, until it
// is asked to draw its screen.
const replayTime = time.Second

// begin connects the person with the command. In the background that waits.
func (r *runner) begin() error {
	stayInBackground()
	return r.resume()
}

// resume takes the terminal, also again after somebody else has used it.
func (r *runner) resume() error {
	switch {
	case r.console == nil:
		return nil
	case !r.console.Owned():
		r.background = time.After(terminal.BackgroundTime)
		return nil
	}
	r.background = nil
	if err := r.console.Raw(); err != nil {
		return err
	}
	r.screen.Restore()
	if r.input.Keys != nil {
		r.input.Escapes.Paste = terminal.Paste{} // its end may have gone to somebody else
		r.redraw()
		return nil
	}
	r.input.Keys = r.console.Keys()
	if r.env.Observing() {
		return nil
	}
	r.resizer = terminal.NewResizer(r.process, r.screen, r.console.Size, signalTimeout)
	r.input.Write = r.process.Write
	if r.attached {
		r.input.Hold()
		r.drawing = r.awaitReplay()
	}
	return nil
}

// awaitReplay returns a channel that is closed when the screen shows what it showed before
// the attachment, or that takes too long.
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

// redraw makes the program draw its screen again. Keys wait for it.
func (r *runner) redraw() {
	if r.resizer != nil {
		r.input.Hold()
		r.resizer.Redraw()
		r.hurry()
	}
}

// hurry is for when there may be keys that wait for the program to draw its screen.
func (r *runner) hurry() {
	if r.input.Holding() {
		r.resizer.Hurry()
	}
}

// suspend gives the terminal back and stops this program. continueSignal comes when the
// person continues it.
func (r *runner) suspend() {
	r.console.Close(true)
	if !suspend() {
		_ = r.resume()
	}
}

// stayStopped stops this program again if somebody has continued it in the background.
func (r *runner) stayStopped() error {
	r.background = nil
	if r.console.Owned() {
		return r.resume()
	}
	r.suspend()
	return nil
}

// outOfSight reports whether the command uses a terminal of which it has nothing now,
// because this program was stopped or is in the background.
func (r *runner) outOfSight() bool {
	return r.console != nil && (!r.console.Taken() || !r.console.Owned())
}
