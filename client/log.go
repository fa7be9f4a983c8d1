package client

import (
	"io"
	"slices"
	"sort"
	"sync"
	"time"
)

// eventLog holds the events of a process for its readers: the most recent ones, for readers that
// are late or slow, and every one that a retaining cursor still needs. The process's mu guards
// it and its cursors.
type eventLog struct {
	maxEvents, maxBytes int // bounds of the latest events

	events []Event // by number; a discarded one keeps only its number, until compact removes it
	latest int     // index of the first of the latest events
	bytes  int     // of output in the latest events
	empty  int     // discarded events in events
	last   uint64  // number of the last event in order

	cursors  []*cursor
	retained int // size of the events that retaining cursors have not consumed
}

// eventBytes is about what an event takes apart from its data: much output in tiny
// pieces counts as what it is.
const eventBytes = 128

func size(e Event) int { return len(e.Data) + eventBytes }

// append adds an event with a number above last.
func (l *eventLog) append(e Event) {
	l.events = append(l.events, e)
	l.bytes += len(e.Data)
	l.skipTo(e.Seq)
	if l.reader(e) != nil {
		l.retained += size(e)
	}
	for len(l.events)-l.latest > l.maxEvents || l.bytes > l.maxBytes && l.latest < len(l.events) {
		old := l.events[l.latest]
		l.bytes -= len(old.Data)
		l.latest++
		if l.reader(old) == nil {
			l.discard(l.latest - 1)
		}
	}
	l.compact()
}

// skipTo makes seq the number of the last event.
func (l *eventLog) skipTo(seq uint64) {
	l.last = max(l.last, seq)
	for _, c := range l.cursors {
		if c.retains {
			l.advance(c)
		}
	}
}

// reader returns the retaining cursor that has yet to consume an event. There is at most one,
// because no two of them want the same stream.
func (l *eventLog) reader(e Event) *cursor {
	for _, c := range l.cursors {
		if c.next <= e.Seq && c.wants(e) {
			return c
		}
	}
	return nil
}

// index returns the index of the first event with at least a number.
func (l *eventLog) index(seq uint64) int {
	return sort.Search(len(l.events), func(i int) bool { return l.events[i].Seq >= seq })
}

// find returns the event with a number, if the log holds it.
func (l *eventLog) find(seq uint64) (Event, bool) {
	e := l.from(seq)
	return e, e.Seq == seq && e.Kind != 0
}

// from returns the first held event from seq on. If there is none, it returns an empty Event with
// the number after the last.
func (l *eventLog) from(seq uint64) Event {
	for _, e := range l.events[l.index(seq):] {
		if e.Kind != 0 {
			return e
		}
	}
	return Event{Seq: l.last + 1}
}

// discard drops an event that is neither among the latest nor wanted by a reader.
func (l *eventLog) discard(i int) {
	l.events[i] = Event{Seq: l.events[i].Seq}
	l.empty++
}

// compact removes discarded events when they are the larger part.
func (l *eventLog) compact() {
	if l.empty < 16 || 2*l.empty < len(l.events) {
		return
	}
	l.latest -= l.empty
	l.events = slices.DeleteFunc(l.events, func(e Event) bool { return e.Kind == 0 })
	l.empty = 0
	if cap(l.events) > 4*l.maxEvents && cap(l.events) > 4*len(l.events) {
		l.events = slices.Clone(l.events)
	}
}

// consume moves a retaining cursor behind the event at which it is.
func (l *eventLog) consume(c *cursor) {
	i := l.index(c.next)
	if i == len(l.events) || c.next != l.events[i].Seq || !c.wants(l.events[i]) {
		return
	}
	l.retained -= size(l.events[i])
	c.next++
	if i < l.latest {
		l.discard(i)
	}
	l.advance(c)
	l.compact()
}

// advance moves a retaining cursor to the first event that it wants and has not consumed.
func (l *eventLog) advance(c *cursor) {
	for i := l.index(c.next); i < len(l.events); i++ {
		if e := l.events[i]; c.wants(e) {
			c.next = e.Seq
			return
		}
	}
	c.next = l.last + 1
}

// remove removes a cursor, and returns how many bytes of output that it retained.
func (l *eventLog) remove(c *cursor) (unread int) {
	l.cursors = slices.DeleteFunc(l.cursors, func(other *cursor) bool { return other == c })
	if !c.retains {
		return 0
	}
	for i := l.index(c.next); i < len(l.events); i++ {
		e := l.events[i]
		if !c.wants(e) {
			continue
		}
		unread += len(e.Data)
		l.retained -= size(e)
		if i < l.latest {
			l.discard(i)
		}
	}
	l.compact()
	return unread
}

// consumed returns the number up to which the cursors have consumed all events. With
// withoutPipes, those of pipes do not count.
func (l *eventLog) consumed(withoutPipes bool) uint64 {
	seq := l.last
	for _, c := range l.cursors {
		if !withoutPipes || !c.pipe {
			seq = min(seq, c.next-1)
		}
	}
	return seq
}

// cursor is the position of a reader in the log of a process. What it has not consumed is not
// acknowledged.
type cursor struct {
	p    *Process
	next uint64 // number of the first event that it has not consumed

	// A retaining cursor wants only some events, and the log holds these until it has consumed
	// them. Other cursors get from the server what the log no longer holds.
	retains                bool
	stdout, stderr, exited bool      // the events that it wants; stdout includes a terminal
	pipe                   bool      // its reader is a pipe, which the caller may not read
	closed                 bool      // the reader has gone
	ready                  sync.Cond // of a retaining cursor; signals an event or the end
}

// addReader adds a retaining cursor at the first event. The process must not have started.
func (p *Process) addReader(c *cursor) *cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.p, c.next, c.retains = p, 1, true
	c.ready.L = &p.mu
	p.piped = p.piped || c.pipe
	p.log.cursors = append(p.log.cursors, c)
	return c
}

// wants reports whether a retaining cursor is for the event.
func (c *cursor) wants(e Event) bool {
	switch {
	case e.Kind == Output && e.Stream == Stderr:
		return c.stderr
	case e.Kind == Output:
		return c.stdout
	}
	return e.Kind == Exited && c.exited
}

// wait returns the event at a retaining cursor, which stays unconsumed until done is called.
// At the end the error is io.EOF, or the failure of the process.
func (c *cursor) wait() (Event, error) {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		e, ok := p.log.find(c.next)
		switch {
		case c.closed:
			return Event{}, io.ErrClosedPipe
		case ok:
			return e, nil
		case p.failure != nil:
			return Event{}, p.failure
		case p.closed:
			return Event{}, io.EOF
		}
		c.ready.Wait()
	}
}

// done records that the reader has consumed the event that wait returned.
func (c *cursor) done(e Event) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.closed {
		return
	}
	c.p.log.consume(c)
	c.p.recountLocked()
	c.p.consumedLocked(len(e.Data))
}

// abandon lets the process continue without the reader of a retaining cursor.
func (c *cursor) abandon() {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.abandonLocked(c)
}

func (p *Process) abandonLocked(c *cursor) {
	if c.closed {
		return
	}
	c.closed = true
	unread := p.log.remove(c)
	p.recountLocked()
	p.consumedLocked(unread)
	c.ready.Broadcast()
}

// passOn passes every event to pass until pass returns an error, which is the result. It
// does not report a failure of the process.
func (c *cursor) passOn(pass func(Event) error) error {
	for {
		e, err := c.wait()
		if err != nil {
			return nil
		}
		err = pass(e)
		c.done(e)
		if err != nil {
			c.abandon()
			return err
		}
	}
}

// Bounds of a reorderBuffer.
const (
	maxEarlyEvents = 256
	maxEarlyBytes  = 1 << 20 // of their output
)

// gapTimeout is how long an event may be missing before the client asks the server for
// it. Servers that do not send in order are late by moments only.
const gapTimeout = time.Second

// reorderBuffer holds events that arrived before their turn.
type reorderBuffer struct {
	events map[uint64]Event
	bytes  int
	timer  *time.Timer
}

func (b *reorderBuffer) empty() bool { return len(b.events) == 0 }

func (b *reorderBuffer) has(seq uint64) bool {
	_, ok := b.events[seq]
	return ok
}

// add adds an event.
func (b *reorderBuffer) add(e Event) {
	if b.events == nil {
		b.events = make(map[uint64]Event)
	}
	if !b.has(e.Seq) {
		b.bytes += len(e.Data)
		b.events[e.Seq] = e
	}
}

// trim drops the events with the highest numbers beyond the bound, and reports whether it did.
func (b *reorderBuffer) trim() bool {
	trimmed := false
	for len(b.events) > maxEarlyEvents || b.bytes > maxEarlyBytes {
		highest := uint64(0)
		for seq := range b.events {
			highest = max(highest, seq)
		}
		b.pop(highest)
		trimmed = true
	}
	return trimmed
}

// pop removes the event of a number and returns it, if it has arrived.
func (b *reorderBuffer) pop(seq uint64) (Event, bool) {
	e, ok := b.events[seq]
	if ok {
		delete(b.events, seq)
		b.bytes -= len(e.Data)
	}
	return e, ok
}

// startTimer makes f run after gapTimeout, unless a timer runs already. f must find out
// whether events still wait for their turn.
func (b *reorderBuffer) startTimer(f func()) {
	if b.timer == nil {
		b.timer = time.AfterFunc(gapTimeout, f)
	}
}

func (b *reorderBuffer) clear() {
	b.events, b.bytes = nil, 0
	if b.timer != nil {
		b.timer.Stop()
	}
}
