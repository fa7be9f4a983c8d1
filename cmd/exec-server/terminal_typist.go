package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"execserver/internal/cli"
)

// How long a person may type without an answer before the typist speaks of it. Until then
// keys wait, as they do on a slow link.
const (
	linkPatience   = 2 * time.Second // for a broken link to be replaced
	answerPatience = 5 * time.Second // for the server to accept keys
)

// maxTyped bounds the keys that wait until the server has accepted those before them.
const maxTyped = 4096

// typist passes the keys of a person on to a process. It reads keys as fast as the server
// accepts them. When the link is down for longer than a moment, the typist says so in the
// status line, and discards the keys, with a beep: nobody sees what they would do, and
// much later they would come as a surprise. It goes on to discard keys after the link has
// recovered until the person pauses, because the rest of a line means something else than
// the whole line.
//
// All methods are for one goroutine.
type typist struct {
	screen  *screen
	keys    <-chan []byte
	escapes escapes
	write   func(context.Context, []byte) error // nil: the person only watches
	weather *weather

	pending   []byte    // keys to be sent
	sent      paste     // of these and those before them
	held      time.Time // since when keys wait until the program draws its screen; zero: they do not
	flight    *flight
	bad       bool // the status line speaks of the link
	pausing   bool // discard keys until the person pauses
	discarded int  // keys, since the link is bad
	last      time.Time
	farewell  time.Time // when the status line may go
}

// flight is the sending of keys.
type flight struct {
	since  time.Time
	keys   int
	cancel context.CancelFunc
	done   chan error
}

// input returns the channel of keys, or nil while the server must accept earlier ones.
func (t *typist) input() <-chan []byte {
	if t == nil || len(t.pending) >= maxTyped && !t.bad {
		return nil
	}
	return t.keys
}

// accepted returns a channel that tells when the server has answered.
func (t *typist) accepted() <-chan error {
	if t == nil || t.flight == nil {
		return nil
	}
	return t.flight.done
}

// typed accepts keys. It returns the second key of a command of the person, or 0. Then
// the caller carries the command out, and calls typed again with the keys after it.
func (t *typist) typed(b []byte) (command byte, rest []byte) {
	if t.bad && time.Since(t.last) >= calm && !t.escapes.pending {
		t.escapes.middle = false // of a line that has gone nowhere
	}
	keys, command, rest := t.escapes.next(b)
	switch {
	case len(keys) == 0:
		return command, rest
	case t.write == nil && bytes.IndexByte(keys, interrupt) >= 0:
		return keyLeave, nil // of a person who only watches
	case t.write == nil:
		t.screen.beep()
	case t.bad || t.pausing && time.Since(t.last) < calm:
		t.discarded += len(keys)
		t.screen.beep()
	default:
		if t.pausing && t.sent.on { // its end went nowhere
			keys = append([]byte(pasteEnds), keys...)
		}
		t.pausing = false
		for _, c := range keys {
			t.sent.follow(c)
		}
		t.pending = append(t.pending, keys...)
		t.send()
	}
	t.last = time.Now()
	return command, rest
}

// hold makes keys wait, because the program is about to draw its screen again. It would
// wipe away what it had answered to them.
func (t *typist) hold() { t.held = time.Now() }

// release is for when the program has been asked to draw its screen.
func (t *typist) release() {
	t.held = time.Time{}
	t.send()
}

// holding reports whether there are keys that wait for release.
func (t *typist) holding() bool { return !t.held.IsZero() && len(t.pending) > 0 }

// send sends the pending keys unless others are under way.
func (t *typist) send() {
	if t.flight != nil || len(t.pending) == 0 || !t.held.IsZero() {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{since: time.Now(), keys: len(t.pending), cancel: cancel, done: make(chan error, 1)}
	keys := t.pending
	t.pending = nil
	t.flight = f
	go func() { // ends with the answer, with cancel, or with the Environment
		f.done <- t.write(ctx, keys)
	}()
}

// answered continues after the server has accepted or refused keys. A process that takes
// no input any more is about to end.
func (t *typist) answered(err error) {
	t.flight.cancel()
	if err != nil {
		t.discarded += t.flight.keys
	}
	t.flight = nil
	t.send()
}

// clock returns a channel that tells when to look at the link again, or nil.
func (t *typist) clock() <-chan time.Time {
	if t == nil || t.flight == nil && t.held.IsZero() && !t.bad && t.farewell.IsZero() && !t.weather.get().down {
		return nil
	}
	return time.After(250 * time.Millisecond)
}

// look compares the state of the link with what the person was told. It reports whether
// the program must draw its screen again.
func (t *typist) look() (redraw bool) {
	now, link := time.Now(), t.weather.get()
	down := link.down && now.Sub(link.since) >= linkPatience
	silent := t.silence(now) >= answerPatience
	switch {
	case down || silent:
		if !t.bad {
			t.begin()
		}
		if down && t.flight != nil {
			t.flight.cancel() // or it would be sent once the link is back
		}
		t.screen.show(t.describe(now, link)...)
	case t.bad:
		t.bad, t.pausing = false, true
		if t.discarded == 0 {
			t.screen.hide()
			return true
		}
		t.screen.show(fmt.Sprintf("the link is back; %s typed meanwhile went nowhere", keyCount(t.discarded)))
		t.farewell = now.Add(farewellTime)
	case !t.farewell.IsZero() && now.After(t.farewell):
		t.farewell, t.discarded = time.Time{}, 0
		t.screen.hide()
		return true
	}
	return false
}

// silence returns for how long keys have been waiting for the server.
func (t *typist) silence(now time.Time) time.Duration {
	switch {
	case t.flight != nil:
		return now.Sub(t.flight.since)
	case t.holding(), t.bad && !t.held.IsZero():
		return now.Sub(t.held)
	}
	return 0
}

// farewellTime is how long the status line tells that keys went nowhere.
const farewellTime = 2 * time.Second

// begin begins to discard keys. The next one begins a line, so that a command needs no
// key before it that goes nowhere.
func (t *typist) begin() {
	t.bad, t.farewell = true, time.Time{}
	t.discarded += len(t.pending)
	t.pending = nil
	t.escapes.restart()
}

// describe returns the parts of the status line, the most important first.
func (t *typist) describe(now time.Time, link linkState) []string {
	first := fmt.Sprintf("no link to %s since %s, gives up in %s",
		link.server, link.since.Format(time.TimeOnly), cli.Spell(max(0, link.until.Sub(now))))
	if !link.down {
		first = fmt.Sprintf("%s has not answered for %s", link.server, cli.Spell(t.silence(now)))
	}
	var keys, leave, detach []string
	if t.discarded > 0 {
		keys = []string{keyCount(t.discarded) + " went nowhere"}
	}
	if t.escapes.char != noEscape {
		c := escapeName(t.escapes.char)
		leave, detach = []string{c + ". leaves"}, []string{c + "d detaches"}
	}
	return slices.Concat([]string{first}, leave, keys, detach)
}

func keyCount(n int) string {
	if n == 1 {
		return "1 key"
	}
	return fmt.Sprintf("%d keys", n)
}

// calm is how long no key must come until a person has noticed that keys go nowhere, and
// burst how long none comes when what was pasted is over. maxCalm bounds the wait for it.
const (
	calm    = 700 * time.Millisecond
	burst   = 100 * time.Millisecond
	maxCalm = 10 * time.Second
)

// end discards keys until closed is closed, or the person has lost patience. Then it waits
// until nothing is being pasted any more, and if the person did not expect the end, until
// they pause: the end of a text must not go to another program than its beginning.
func (t *typist) end(closed <-chan struct{}, unexpected bool) {
	pause := burst
	if unexpected {
		pause = calm
	}
	if t.flight != nil {
		t.flight.cancel()
	}
	if t.flight != nil || len(t.pending) > 0 { // keys after these may not have been read yet
		t.last = time.Now()
	}
	for waiting := true; waiting; {
		select {
		case keys, ok := <-t.keys:
			if !ok {
				return
			}
			t.last = time.Now()
			_, command, _ := t.escapes.next(keys)
			waiting = command != keyLeave && bytes.IndexByte(keys, interrupt) < 0
		case <-closed:
			waiting = false
		}
	}
	if time.Since(t.last) >= pause {
		return
	}
	// In several steps: when this program gets no processor for a while, the keys that came
	// meanwhile have not been read yet.
	const steps = 4
	limit := time.Now().Add(maxCalm)
	for quiet := 0; quiet < steps && time.Now().Before(limit); quiet++ {
		select {
		case _, ok := <-t.keys:
			if !ok {
				return
			}
			quiet = -1
			if unexpected {
				t.screen.beep()
			}
		case <-time.After(pause / steps):
		}
	}
}

// interrupt is the key ^C.
const interrupt = 3
