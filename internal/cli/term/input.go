package term

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"execserver/internal/cli"
)

// How long keys wait without an answer before the status line reports it.
const (
	linkPatience   = 2 * time.Second // for a broken link to be replaced
	answerPatience = 5 * time.Second // for the server to accept keys
)

// maxTyped bounds the keys that wait for earlier ones to be accepted.
const maxTyped = 4096

// InputForwarder forwards keys to a process as fast as the server accepts them. When the link is
// down for longer than linkPatience, the status line reports it, and keys are discarded with a
// beep: the user could not see their effect, and a late effect would be a surprise. After the
// link recovers, keys are discarded until the user pauses, because the rest of a line can mean
// something else than the whole line.
type InputForwarder struct {
	Screen  *Screen
	Keys    <-chan []byte
	Escapes Escapes
	Write   func(context.Context, []byte) error // nil for attach --read-only
	Link    *LinkMonitor

	pending      []byte    // keys to be sent
	sent         Paste     // the paste state of all keys sent
	held         time.Time // when keys began to wait for a redraw, or zero
	pendingWrite *pendingWrite
	bad          bool // the status line reports the link
	pausing      bool // discard keys until the user pauses
	discarded    int  // keys, since the link is bad
	last         time.Time
	hideAt       time.Time // when the status line may go
}

// pendingWrite is a write of keys in progress.
type pendingWrite struct {
	since  time.Time
	keys   int
	cancel context.CancelFunc
	done   chan error
}

// Input returns the channel of keys, or nil while too many keys wait.
func (f *InputForwarder) Input() <-chan []byte {
	if f == nil || len(f.pending) >= maxTyped && !f.bad {
		return nil
	}
	return f.Keys
}

// Accepted returns a channel that receives the result of the pending write, or nil.
func (f *InputForwarder) Accepted() <-chan error {
	if f == nil || f.pendingWrite == nil {
		return nil
	}
	return f.pendingWrite.done
}

// Typed accepts keys. It returns the second key of a user command, or 0. Then the caller executes
// the command, and calls Typed again with the rest.
func (f *InputForwarder) Typed(b []byte) (command byte, rest []byte) {
	if f.bad && time.Since(f.last) >= calm && !f.Escapes.pending {
		f.Escapes.middle = false // the line was discarded
	}
	keys, command, rest := f.Escapes.next(b)
	switch {
	case len(keys) == 0:
		return command, rest
	case f.Write == nil && bytes.IndexByte(keys, interrupt) >= 0:
		return KeyLeave, nil // with --read-only
	case f.Write == nil:
		f.Screen.beep()
	case f.bad || f.pausing && time.Since(f.last) < calm:
		f.discarded += len(keys)
		f.Screen.beep()
	default:
		if f.pausing && f.sent.on { // its end went nowhere
			keys = append([]byte(pasteEnds), keys...)
		}
		f.pausing = false
		for _, c := range keys {
			f.sent.follow(c)
		}
		f.pending = append(f.pending, keys...)
		f.send()
	}
	f.last = time.Now()
	return command, rest
}

// Hold makes keys wait for the program to draw its screen, which would erase its answers to them.
func (f *InputForwarder) Hold() { f.held = time.Now() }

// Release ends Hold, after the program was asked to draw its screen.
func (f *InputForwarder) Release() {
	f.held = time.Time{}
	f.send()
}

// Holding reports whether keys wait for Release.
func (f *InputForwarder) Holding() bool { return !f.held.IsZero() && len(f.pending) > 0 }

// send starts to send the pending keys, unless a write is in progress.
func (f *InputForwarder) send() {
	if f.pendingWrite != nil || len(f.pending) == 0 || !f.held.IsZero() {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &pendingWrite{since: time.Now(), keys: len(f.pending), cancel: cancel, done: make(chan error, 1)}
	keys := f.pending
	f.pending = nil
	f.pendingWrite = w
	go func() { // ends with the answer, with cancel, or with the Environment
		w.done <- f.Write(ctx, keys)
	}()
}

// Answered continues after the result of a write. A process that refuses input is about to end.
func (f *InputForwarder) Answered(err error) {
	f.pendingWrite.cancel()
	if err != nil {
		f.discarded += f.pendingWrite.keys
	}
	f.pendingWrite = nil
	f.send()
}

// Clock returns a channel that receives when to call Look again, or nil.
func (f *InputForwarder) Clock() <-chan time.Time {
	if f == nil || f.pendingWrite == nil && f.held.IsZero() && !f.bad && f.hideAt.IsZero() && !f.Link.Get().Down {
		return nil
	}
	return time.After(250 * time.Millisecond)
}

// Look updates the status line with the state of the link. It reports whether the program must
// draw its screen again.
func (f *InputForwarder) Look() (redraw bool) {
	now, link := time.Now(), f.Link.Get()
	down := link.Down && now.Sub(link.since) >= linkPatience
	silent := f.silence(now) >= answerPatience
	switch {
	case down || silent:
		if !f.bad {
			f.begin()
		}
		if down && f.pendingWrite != nil {
			f.pendingWrite.cancel() // otherwise it would be sent after the recovery
		}
		f.Screen.show(f.describe(now, link)...)
	case f.bad:
		f.bad, f.pausing = false, true
		if f.discarded == 0 {
			f.Screen.hide()
			return true
		}
		f.Screen.show(fmt.Sprintf("the link is back; %s went nowhere", keyCount(f.discarded)))
		f.hideAt = now.Add(statusTime)
	case !f.hideAt.IsZero() && now.After(f.hideAt):
		f.hideAt, f.discarded = time.Time{}, 0
		f.Screen.hide()
		return true
	}
	return false
}

// silence returns how long keys have waited for the server.
func (f *InputForwarder) silence(now time.Time) time.Duration {
	switch {
	case f.pendingWrite != nil:
		return now.Sub(f.pendingWrite.since)
	case f.Holding(), f.bad && !f.held.IsZero():
		return now.Sub(f.held)
	}
	return 0
}

// statusTime is how long the status line reports discarded keys.
const statusTime = 2 * time.Second

// begin starts to discard keys. The next key counts as the start of a line, so that a user
// command needs no key before it.
func (f *InputForwarder) begin() {
	f.bad, f.hideAt = true, time.Time{}
	f.discarded += len(f.pending)
	f.pending = nil
	f.Escapes.restart()
}

// describe returns the parts of the status line, the most important first.
func (f *InputForwarder) describe(now time.Time, link LinkState) []string {
	first := fmt.Sprintf("no link to %s since %s, gives up in %s",
		link.server, link.since.Format(time.TimeOnly), cli.Spell(max(0, link.until.Sub(now))))
	if !link.Down {
		first = fmt.Sprintf("%s has not answered for %s", link.server, cli.Spell(f.silence(now)))
	}
	var keys, leave, detach []string
	if f.discarded > 0 {
		keys = []string{keyCount(f.discarded) + " went nowhere"}
	}
	if f.Escapes.Char != noEscape {
		c := escapeName(f.Escapes.Char)
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

// calm is a pause by which the user has noticed that keys are discarded, and burst a pause that
// ends a paste. maxCalm bounds the wait for a pause.
const (
	calm    = 700 * time.Millisecond
	burst   = 100 * time.Millisecond
	maxCalm = 10 * time.Second
)

// End discards keys until closed is closed or the user interrupts. Then it waits for the end of a
// paste and, if the end was unexpected, for a pause: the rest of a text must not reach another
// program.
func (f *InputForwarder) End(closed <-chan struct{}, unexpected bool) {
	pause := burst
	if unexpected {
		pause = calm
	}
	if f.pendingWrite != nil {
		f.pendingWrite.cancel()
	}
	if f.pendingWrite != nil || len(f.pending) > 0 { // keys after these may not have been read yet
		f.last = time.Now()
	}
	for waiting := true; waiting; {
		select {
		case keys, ok := <-f.Keys:
			if !ok {
				return
			}
			f.last = time.Now()
			_, command, _ := f.Escapes.next(keys)
			waiting = command != KeyLeave && bytes.IndexByte(keys, interrupt) < 0
		case <-closed:
			waiting = false
		}
	}
	if time.Since(f.last) >= pause {
		return
	}
	// Wait in steps, because unread keys accumulate while this program does not run.
	const steps = 4
	limit := time.Now().Add(maxCalm)
	for quiet := 0; quiet < steps && time.Now().Before(limit); quiet++ {
		select {
		case _, ok := <-f.Keys:
			if !ok {
				return
			}
			quiet = -1
			if unexpected {
				f.Screen.beep()
			}
		case <-time.After(pause / steps):
		}
	}
}

// interrupt is the key ^C.
const interrupt = 3
