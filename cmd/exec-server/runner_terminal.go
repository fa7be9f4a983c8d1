package main

import "time"

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
	case !r.console.owned():
		r.background = time.After(backgroundTime)
		return nil
	}
	r.background = nil
	if err := r.console.raw(); err != nil {
		return err
	}
	r.screen.restore()
	if r.typist.keys != nil {
		r.typist.escapes.paste = paste{} // its end may have gone to somebody else
		r.redraw()
		return nil
	}
	r.typist.keys = r.console.keys()
	if r.env.Observing() {
		return nil
	}
	r.sizer = newSizer(r.process, r.screen, r.console.size, signalTimeout)
	r.typist.write = r.process.Write
	if r.attached {
		r.typist.hold()
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
	if r.sizer != nil {
		r.typist.hold()
		r.sizer.redraw()
		r.hurry()
	}
}

// hurry is for when there may be keys that wait for the program to draw its screen.
func (r *runner) hurry() {
	if r.typist.holding() {
		r.sizer.hurry()
	}
}

// suspend gives the terminal back and stops this program. continueSignal comes when the
// person continues it.
func (r *runner) suspend() {
	r.console.close(true)
	if !suspend() {
		_ = r.resume()
	}
}

// stayStopped stops this program again if somebody has continued it in the background.
func (r *runner) stayStopped() error {
	r.background = nil
	if r.console.owned() {
		return r.resume()
	}
	r.suspend()
	return nil
}

// outOfSight reports whether the command uses a terminal of which it has nothing now,
// because this program was stopped or is in the background.
func (r *runner) outOfSight() bool {
	return r.console != nil && (!r.console.taken() || !r.console.owned())
}
