// Package output numbers the events of processes and retains their output, so that it can
// be sent, sent again and read later. It does not depend on package process, which writes
// into a log and reports when the leader has exited.
//
// A [Log] holds the events of one process. A [Writer] lends segments of memory for reading
// one stream. The log's chunks are slices of the segments, and a connection borrows the
// chunks, so output is not copied before it is encoded. After closed, a background log
// continues with the output of descendants.
//
// A log retains output up to its limit, and all logs of a [Budget] together as much memory
// as the budget allows. Acknowledged output is evicted first, the oldest first; a small
// head of each stream is kept for snapshots. If nothing may be evicted, the writers wait,
// and the child with them. A background log never waits: it evicts.
//
// Log.mu guards a log. pool.mu guards the state shared by budgets, and may be locked while
// Log.mu is held. A stream that waits for space has one channel: its log notifies it after
// each change, and the pool when it is first in the queue. A [Listener] is called without
// locks held.
package output

import (
	"bytes"
	"context"
	"sort"
	"sync"
	"time"

	"execserver/protocol"
)

// maxChunkBytes bounds the growth of a chunk that has not been read.
const maxChunkBytes = 64 << 10

// chunkCost is the overhead of a chunk against the retention limit, so that a child that
// writes single bytes does not cost many times its limit.
const chunkCost = 64

// Log numbers the events of one process and retains its output within a bound. Sequence
// numbers start at 1 and have no gaps over output, exited and closed.
//
// A chunk grows until it is read. So a busy receiver gets fewer and larger chunks, and an
// idle one gets output at once.
//
// All methods may be called concurrently.
type Log struct {
	limit    int64
	budget   *Budget
	listener Listener
	created  uint64 // when the log was made, as an age of chunks

	mu             sync.Mutex
	changed        chan struct{} // closed at the next event; nil if nothing waits
	chunks         []chunk       // oldest first
	streams        []streamRecord
	cost           int64       // of chunks and heads
	last           uint64      // the latest sequence number
	total          uint64      // bytes of output numbered so far
	acked          Position    // up to which the owner has acknowledged everything
	evictedUnacked []Position  // positions after acked of evicted chunks; at most maxEvictedUnacked
	polled         uint64      // up to which a polling reader has everything
	pollEnd        time.Time   // until then output after polled is protected
	pollTimer      *time.Timer // calls advance at pollEnd; nil: never polled
	pollHolds      int         // while there are any, output after polled is protected as well; see HoldPoll
	evict          bool        // evict unacknowledged output rather than block
	aborted        bool        // reads no longer wait for space
	draining       bool        // reads need no space
	waiters        []*waiter   // streams that wait for space
	candidate      candidate   // the oldest output that the budget may evict

	droppedBytes uint64 // numbered or refused output that the log does not hold: evicted, or written after Abort
	exitSeq      uint64 // 0: not exited
	exitOffset   uint64 // bytes of output before exited
	exit         protocol.ExitRecord
	latest       time.Time // time of the latest output, or of the exit if that is later
	closedSeq    uint64    // 0: not closed

	background *Log // output after closed; nil: none
	lossy      bool // this is a background log, which evicts rather than waits
}

// streamRecord describes one stream of a log.
type streamRecord struct {
	name  string
	total uint64 // bytes ever numbered
	head  []byte // the evicted beginning, as far as it is kept
	lost  bool   // the head was dropped
}

type chunk struct {
	protocol.Chunk
	offset uint64 // bytes of output before it
	age    uint64 // the order of chunks over all processes
	sealed bool   // it has been read, and no longer grows
	in     *segment
}

// Listener is notified of changes in a log. Its methods are called without locks held and
// must not block.
type Listener interface {
	// Changed is called after new events.
	Changed()
	// Blocked is called when output waits for an acknowledgement by the owner.
	Blocked()
}

type nopListener struct{}

func (nopListener) Changed() {}
func (nopListener) Blocked() {}

// NewLog makes a log that retains up to limit bytes within the budget. The listener may be
// nil.
func NewLog(limit int64, budget *Budget, listener Listener) *Log {
	if listener == nil {
		listener = nopListener{}
	}
	l := &Log{limit: limit, budget: budget, listener: listener, created: budget.nextAge()}
	l.candidate = candidate{log: l, age: notEvictable, index: -1}
	return l
}

// Position is a position between two events of a log.
type Position struct {
	Seq    uint64 // of the event before it, 0 at the beginning
	Offset uint64 // bytes of output before it
}

// EventKind is the kind of an Event.
type EventKind byte

// The kinds of event.
const (
	Output EventKind = iota + 1
	Exited
	Closed
)

// Event is one numbered event. Data is immutable.
type Event struct {
	Kind   EventKind
	Seq    uint64
	Offset uint64              // bytes of output before it
	Output protocol.Chunk      // if Kind is Output
	Exit   protocol.ExitRecord // if Kind is Exited

	Waiting bool // output is blocked until this is acknowledged

	in *segment // the borrowed segment
}

// LastSeq returns the latest sequence number.
func (l *Log) LastSeq() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Tail returns the position after the last event. Later output does not extend the last
// chunk.
func (l *Log) Tail() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealLocked()
	return Position{l.last, l.total}
}

// append numbers output and takes ownership of data, which lies in the segment; nil means
// in memory of its own. Data that directly follows the last chunk in memory may extend it.
func (l *Log) append(stream string, data []byte, in *segment) {
	l.mu.Lock()
	switch {
	case l.aborted:
		l.droppedBytes += uint64(len(data))
		l.budget.pool.counts.dropped.Add(uint64(len(data)))
		l.mu.Unlock()
		return
	case l.closedSeq > 0:
		background := l.background
		l.mu.Unlock()
		if background != nil {
			// A copy, because the segment belongs to this log.
			background.append(stream, bytes.Clone(data), nil)
		}
		return
	case l.exitSeq > 0:
		l.latest = time.Now()
	}
	l.cost += int64(len(data))
	if n := len(l.chunks); n == 0 || !l.chunks[n-1].grow(stream, data, l.last) {
		if in == nil {
			in = &segment{size: cap(data), buf: data}
		}
		l.last++
		l.addLocked(chunk{
			Chunk:  protocol.Chunk{Seq: l.last, Stream: stream, Data: data},
			offset: l.total, age: l.budget.nextAge(), in: in,
		})
	}
	l.total += uint64(len(data))
	l.budget.pool.counts.bytes.Add(uint64(len(data)))
	l.streamLocked(stream).total += uint64(len(data))
	for (l.cost > l.limit || l.lossy && l.budget.full()) && l.evictOldestLocked() {
	}
	l.updateCandidateLocked()
	l.signalLocked()
	lossy := l.lossy
	l.mu.Unlock()
	if !lossy { // a background log has no listener
		l.listener.Changed()
	}
}

// Borrow returns the first event after the sequence number, if there is one. A borrowed
// chunk no longer grows. The caller must call Return when it has finished with the event's
// data.
func (l *Log) Borrow(after uint64) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.nextLocked(after)
	if c != nil {
		c.sealed = true
	}
	return e.borrowLocked(c), e.Kind != 0
}

// Peek returns the event after a position, if there is one. Unlike with Borrow, a chunk
// continues to grow, and Peek returns the rest of it later. So an internal reader does not
// split the output into more events. The caller must call Return when it has finished with
// the event's data.
func (l *Log) Peek(at Position) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.peekLocked(at)
	return e.borrowLocked(c), e.Kind != 0
}

// Await waits until Peek would return an event, or ctx ends.
func (l *Log) Await(ctx context.Context, at Position) {
	l.await(ctx, func() bool {
		e, _ := l.peekLocked(at)
		return e.Kind != 0
	})
}

// Return ends the use of a borrowed event's data.
func (l *Log) Return(e Event) {
	if e.in == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.in.releaseLocked()
}

// borrowLocked references the segment of the event's chunk, if any, until Return.
func (e Event) borrowLocked(c *chunk) Event {
	if c != nil {
		c.in.refs++
		e.in = c.in
	}
	return e
}

func (l *Log) peekLocked(at Position) (Event, *chunk) {
	if i := l.firstAfterLocked(at.Seq); i > 0 && l.chunks[i-1].Seq == at.Seq { // it may have grown since
		c := &l.chunks[i-1]
		if seen := at.Offset - c.offset; seen < uint64(len(c.Data)) {
			e := Event{Kind: Output, Seq: c.Seq, Offset: at.Offset, Output: c.Chunk}
			e.Output.Data = c.Data[seen:]
			return e, c
		}
	}
	return l.nextLocked(at.Seq)
}

// nextLocked returns the first event after the sequence number, and its chunk if it is
// output.
func (l *Log) nextLocked(after uint64) (Event, *chunk) {
	i := l.firstAfterLocked(after)
	hasExit := l.exitSeq > after
	if i < len(l.chunks) && !(hasExit && l.exitSeq < l.chunks[i].Seq) {
		c := &l.chunks[i]
		return Event{Kind: Output, Seq: c.Seq, Offset: c.offset, Output: c.Chunk, Waiting: len(l.waiters) > 0}, c
	}
	switch {
	case hasExit:
		return Event{Kind: Exited, Seq: l.exitSeq, Offset: l.exitOffset, Exit: l.exit}, nil
	case l.closedSeq > after:
		return Event{Kind: Closed, Seq: l.closedSeq, Offset: l.total}, nil
	}
	return Event{}, nil
}

// firstAfterLocked returns the index of the first chunk after the sequence number.
func (l *Log) firstAfterLocked(after uint64) int {
	return sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].Seq > after })
}

// Exit numbers the exited event.
func (l *Log) Exit(record protocol.ExitRecord) {
	l.mu.Lock()
	l.last++
	l.exitSeq, l.exitOffset, l.exit = l.last, l.total, record
	l.latest = time.Now()
	l.signalLocked()
	l.mu.Unlock()
	l.listener.Changed()
}

// Close numbers the closed event. held reports whether descendants still hold streams;
// their output goes to the background log.
func (l *Log) Close(held bool) {
	l.mu.Lock()
	l.closedSeq = l.last + 1
	if !l.lossy {
		l.last++ // the end of a background log is not an event
	}
	if held {
		l.background = newBackgroundLog(l.limit, l.budget)
	}
	l.advanceLocked() // streams that wait for space continue in the background log
	l.signalLocked()
	l.mu.Unlock()
	l.listener.Changed()
}

// Abort ends all waiting in reserve: output that does not fit is lost from now on.
func (l *Log) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
}

// Release returns the retained bytes, including those of the background log, to the budget.
// The log must not be used afterwards.
func (l *Log) Release() {
	l.release()
	if background := l.Background(); background != nil {
		background.release()
	}
}

// Background returns the log of the output after closed. It is nil before that, and if
// descendants do not hold the streams.
func (l *Log) Background() *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.background
}

// BackgroundOpen reports whether the process has closed and descendants still hold its
// streams.
func (l *Log) BackgroundOpen() bool {
	background := l.Background()
	return background != nil && !background.IsClosed()
}

// CloseBackground closes the background log when descendants have released all streams.
func (l *Log) CloseBackground() {
	l.Background().Close(false)
	l.listener.Changed()
}

func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
	for len(l.chunks) > 0 {
		l.removeOldestLocked()
	}
	l.chunks = nil
	l.dropHeadsLocked()
	l.budget.removeCandidate(&l.candidate)
	if l.pollTimer != nil {
		l.pollTimer.Stop()
	}
}

func (l *Log) abortLocked() {
	l.aborted = true
	l.advanceLocked()
}

// refusesOutputLocked reports whether the log accepts no more output.
func (l *Log) refusesOutputLocked() bool { return l.aborted || l.closedSeq > 0 }

// addLocked adds a chunk whose data is already counted.
func (l *Log) addLocked(c chunk) {
	l.chunks = append(l.chunks, c)
	l.cost += chunkCost
	l.budget.add(chunkCost)
	if c.in.chunks++; c.in.chunks == 1 {
		l.budget.add(int64(c.in.size))
	}
}

func (l *Log) removeOldestLocked() {
	c := l.chunks[0]
	l.chunks[0] = chunk{}
	l.chunks = l.chunks[1:]
	l.cost -= c.cost()
	freed := int64(chunkCost)
	if c.in.chunks--; c.in.chunks == 0 {
		freed += int64(c.in.size)
		c.in.recycleLocked()
	}
	l.budget.add(-freed)
}

// grow extends the last chunk by data that follows it in memory, unless it has been read.
func (c *chunk) grow(stream string, data []byte, last uint64) bool {
	n := len(c.Data)
	if c.sealed || c.Seq != last || c.Stream != stream || n+len(data) > maxChunkBytes || cap(c.Data) < n+len(data) {
		return false
	}
	if grown := c.Data[:n+len(data)]; &grown[n] == &data[0] {
		c.Data = grown
		return true
	}
	return false
}

func (c *chunk) cost() int64 { return int64(len(c.Data)) + chunkCost }

// streamLocked returns the record of a stream; there are at most two.
func (l *Log) streamLocked(name string) *streamRecord {
	for i := range l.streams {
		if l.streams[i].name == name {
			return &l.streams[i]
		}
	}
	l.streams = append(l.streams, streamRecord{name: name})
	return &l.streams[len(l.streams)-1]
}

// sealLocked keeps the last chunk from growing.
func (l *Log) sealLocked() {
	if n := len(l.chunks); n > 0 {
		l.chunks[n-1].sealed = true
	}
}

func (l *Log) signalLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// newBackgroundLog makes the log for output after closed. It never blocks: when it or the
// budget is full, it evicts its oldest output.
func newBackgroundLog(limit int64, budget *Budget) *Log {
	l := NewLog(limit, budget, nil)
	l.lossy, l.evict = true, true
	return l
}
