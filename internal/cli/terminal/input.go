package terminal

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"execserver/internal/cli"
)

// How long a person may type without an answer before the status line reports it. Until then
// keys wait, as they do on a slow link.
const (
	linkPatience   = 2 * time.Second // for a broken link to be replaced
	answerPatience = 5 * time.Second // for the server to accept keys
)

// maxTyped bounds the keys that wait until the server has accepted those before them.
const maxTyped = 4096

// InputForwarder passes the keys of a person on to a process. It reads keys as fast as the server
// accepts them. When the link is down for longer than a moment, it says so in the
// status line, and discards the keys, with a beep: nobody sees what they would do, and
// much later they would come as a surprise. It goes on to discard keys after the link has
// recovered until the person pauses, because the rest of a line means something else than
// the whole line.
//
// All methods are for one goroutine.
type InputForwarder struct {
	Screen  *Screen
	Keys    <-chan []byte
	Escapes Escapes
	Write   func(context.Context, []byte) error // nil: the person only watches
	Link    *LinkMonitor

	pending      []byte    // keys to be sent
	sent         Paste     // of these and those before them
	held         time.Time // since when keys wait until the program draws its screen; zero: they do not
	pendingWrite *pendingWrite
	bad          bool // the status line reports the link
	pausing      bool // discard keys until the person pauses
	discarded    int  // keys, since the link is bad
	last         time.Time
	hideAt       time.Time // when the status line may go
}

// pendingWrite is the sending of keys.
type pendingWrite struct {
	since  time.Time
	keys   int
	cancel context.CancelFunc
	done   chan error
}

// Input returns the channel of keys, or nil while the server must accept earlier ones.
func (f *InputForwarder) Input() <-chan []byte {
	if f == nil || len(f.pending) >= maxTyped && !f.bad {
		return nil
	}
	return f.Keys
}

// Accepted returns a channel that receives when the server has answered.
func (f *InputForwarder) Accepted() <-chan error {
	if f == nil || f.pendingWrite == nil {
		return nil
	}
	return f.pendingWrite.done
}

// Typed accepts keys. It returns the second key of a command of the person, or 0. Then
// the caller carries the command out, and calls typed again with the keys after it.
func (f *InputForwarder) Typed(b []byte) (command byte, rest []byte) {
	if f.bad && time.Since(f.last) >= calm && !f.Escapes.pending {
		f.Escapes.middle = false // of a line that has gone nowhere
	}
	keys, command, rest := f.Escapes.next(b)
	switch {
	case len(keys) == 0:
		return command, rest
	case f.Write == nil && bytes.IndexByte(keys, interrupt) >= 0:
		return KeyLeave, nil // of a person who only watches
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

// Hold makes keys wait, because the program is about to draw its screen again. It would
// wipe away what it had answered to them.
func (f *InputForwarder) Hold() { f.held = time.Now() }

// Release is for when the program has been asked to draw its screen.
func (f *InputForwarder) Release() {
	f.held = time.Time{}
	f.send()
}

// Holding reports whether there are keys that wait for release.
func (f *InputForwarder) Holding() bool { return !f.held.IsZero() && len(f.pending) > 0 }

// send sends the pending keys unless others are under way.
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

// Answered continues after the server has accepted or refused keys. A process that takes
// no input any more is about to end.
func (f *InputForwarder) Answered(err error) {
	f.pendingWrite.cancel()
	if err != nil {
		f.discarded += f.pendingWrite.keys
	}
	f.pendingWrite = nil
	f.send()
}

// Clock returns a channel that receives when to look at the link again, or nil.
func (f *InputForwarder) Clock() <-chan time.Time {
	if f == nil || f.pendingWrite == nil && f.held.IsZero() && !f.bad && f.hideAt.IsZero() && !f.Link.Get().Down {
		return nil
	}
	return time.After(250 * time.Millisecond)
}

// Look compares the state of the link with what the person was told. It reports whether
// the program must draw its screen again.
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
			f.pendingWrite.cancel() // or it would be sent once the link is back
		}
		f.Screen.show(f.describe(now, link)...)
	case f.bad:
		f.bad, f.pausing = false, true
		if f.discarded == 0 {
			f.Screen.hide()
			return true
		}
		f.Screen.show(fmt.Sprintf("the link is back; %s typed meanwhile went nowhere", keyCount(f.discarded)))
		f.hideAt = now.Add(statusTime)
	case !f.hideAt.IsZero() && now.After(f.hideAt):
		f.hideAt, f.discarded = time.Time{}, 0
		f.Screen.hide()
		return true
	}
	return false
}

// silence returns for how long keys have been waiting for the server.
func (f *InputForwarder) silence(now time.Time) time.Duration {
	switch {
	case f.pendingWrite != nil:
		return now.Sub(f.pendingWrite.since)
	case f.Holding(), f.bad && !f.held.IsZero():
		return now.Sub(f.held)
	}
	return 0
}

// statusTime is how long the status line tells that keys went nowhere.
const statusTime = 2 * time.Second

// begin begins to discard keys. The next one begins a line, so that a command needs no
// key before it that goes nowhere.
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

// calm is how long no key must come until a person has noticed that keys go nowhere, and
// burst how long none comes when what was pasted is over. maxCalm bounds the wait for it.
const (
	calm    = 700 * time.Millisecond
	burst   = 100 * time.Millisecond
	maxCalm = 10 * time.Second
)

// End discards keys until closed is closed, or the person has lost patience. Then it waits
// until nothing is being pasted any more, and if the person did not expect the end, until
// they pause: the end of a text must not go to another program than its beginning.
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
	// In several steps: when this program gets no processor for a while, the keys that came
	// meanwhile have not been read yet.
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
