// Package output numbers the events of processes and retains their output, so that it can
// be sent, sent again and read later. It knows no child: package process writes into a
// log and says when the leader has exited.
//
// A [Log] has the events of one process. A [Writer] reads one stream into segments of
// memory. The chunks of the log lie in them, and the writer of a connection borrows the
// chunks, so that output is never copied before it is encoded. After closed, a
// background log continues with what descendants write.
//
// A log retains output up to its limit, and all logs of a [Budget] together retain output
// up to the budget's. What the owner has acknowledged is evicted first, the oldest
// first; of each stream a small head is kept for snapshots. If nothing may be evicted,
// the writers wait, and the child with them. A background log never waits: it evicts.
//
// Log.mu guards a log. pool.mu guards the queues of the budgets, and may be locked while
// Log.mu is. A [Listener] is called without locks.
package output

import (
	"bytes"
	"context"
	"sort"
	"sync"
	"time"

	"execserver/protocol"
)

// maxChunkBytes is the size up to which a chunk grows while nobody has seen it.
const maxChunkBytes = 64 << 10

// chunkCost is what a chunk counts against the retention besides its data, so
// that a child that writes single bytes does not cost many times its limit.
const chunkCost = 64

// Log numbers the events of one process and retains its output within a bound.
// Numbers start at 1 and have no gaps over output, exit and close.
//
// A chunk grows until somebody has seen it. So a busy receiver gets fewer and larger
// chunks, and a free one gets output at once.
//
// All methods may be called concurrently.
type Log struct {
	limit    int64
	budget   *Budget
	listener Listener

	unwanted chan struct{} // closed when refusing becomes true

	mu       sync.Mutex
	room     sync.Cond     // broadcast when output may have become evictable
	changed  chan struct{} // closed at the next event; nil when nobody waits
	chunks   []chunk       // oldest first
	cost     int64         // of chunks and heads
	last     uint64        // the number given last
	total    uint64        // bytes of output numbered so far
	acked    Position      // the owner has everything up to here
	lost     []Position    // behind acked, of what was evicted; at most maxLost
	polled   uint64        // a reader that polls has everything up to here
	pollEnd  time.Time     // until then the log protects what comes after polled
	grace    *time.Timer   // offers that output to the budget at pollEnd; nil: not yet needed
	evict    bool          // evict unacknowledged output rather than block
	offered  bool          // the budget knows that the first chunk may be evicted
	aborted  bool          // output is not waited for any more
	refusing bool          // it accepts no more output: it is aborted or closed
	drains   chan struct{} // closed while draining; nil after
	waiting  int           // streams that wait for room
	free     []*segment    // to be filled again; see segment

	streams   []streamRecord
	headLimit int    // bytes of each stream's beginning that outlive eviction
	headed    bool   // the budget knows that there are some
	born      uint64 // when the log was made, as a stamp of chunks

	droppedBytes uint64
	exitSeq      uint64 // 0: not exited
	exitOffset   uint64 // bytes of output numbered before
	exit         protocol.ExitRecord
	exitCh       chan struct{} // closed when exited
	latest       time.Time     // when output came last; of that before the exit, the exit
	closedSeq    uint64        // 0: not closed

	background *Log // what comes after closed; nil: nothing does
	lossy      bool // this is a background log, which nobody waits for
}

// streamRecord is what a log knows about one stream besides its chunks.
type streamRecord struct {
	name  string
	total uint64 // bytes ever numbered
	head  []byte // its first bytes, those that were evicted
	lost  bool   // the head was dropped
}

// streamLocked returns the record of a stream; there are two at most.
func (l *Log) streamLocked(name string) *streamRecord {
	for i := range l.streams {
		if l.streams[i].name == name {
			return &l.streams[i]
		}
	}
	l.streams = append(l.streams, streamRecord{name: name})
	return &l.streams[len(l.streams)-1]
}

type chunk struct {
	protocol.Chunk
	offset uint64 // bytes of output before it
	stamp  uint64 // orders chunks over all processes by age
	sealed bool   // somebody has seen it
	in     *segment
}

func (c *chunk) cost() int64 { return int64(len(c.Data)) + chunkCost }

// Listener learns what happens in a log. Its methods are called without locks and must
// not block. A session's entry listens to the log of its process.
type Listener interface {
	// Changed says that there are new events.
	Changed()
	// Blocked says that output waits until the owner acknowledges what it has.
	Blocked()
}

// nobody is the Listener of a log that nobody listens to.
type nobody struct{}

func (nobody) Changed() {}
func (nobody) Blocked() {}

// NewLog makes a log that retains up to limit bytes within the budget. A nil listener
// stands for nobody.
func NewLog(limit int64, budget *Budget, listener Listener) *Log {
	if listener == nil {
		listener = nobody{}
	}
	l := &Log{
		limit: limit, budget: budget, listener: listener,
		headLimit: headLimit(limit), born: budget.stamp(), exitCh: make(chan struct{}),
		unwanted: make(chan struct{}),
		drains:   make(chan struct{}),
	}
	l.room.L = &l.mu
	return l
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
	Offset uint64              // bytes of output numbered before it
	Output protocol.Chunk      // Output
	Exit   protocol.ExitRecord // Exited

	Waiting bool // output waits until this is acknowledged

	in *segment // that is borrowed
}

// Borrow returns the first event after the number, if there is one. A chunk that it
// returns does not grow any more. The caller must call Return when it has finished with
// the event's data.
func (l *Log) Borrow(after uint64) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.nextLocked(after)
	if c != nil {
		c.sealed = true
	}
	return e.borrowLocked(c), e.Kind != 0
}

// borrowLocked makes the event use the memory of its chunk, if it has one, until Return.
func (e Event) borrowLocked(c *chunk) Event {
	if c != nil && c.in != nil {
		c.in.users++
		e.in = c.in
	}
	return e
}

// Peek returns what follows a position, if there is something. Unlike with Borrow, a chunk
// goes on growing, and Peek returns the rest of it later. So a reader that is no client
// does not cut the output into more events. The caller must call Return when it has
// finished with the event's data.
func (l *Log) Peek(at Position) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.peekLocked(at)
	return e.borrowLocked(c), e.Kind != 0
}

// Await waits until Peek has something to return, or ctx ends.
func (l *Log) Await(ctx context.Context, at Position) {
	l.await(ctx, func() bool {
		e, _ := l.peekLocked(at)
		return e.Kind != 0
	})
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

// Return gives back an event that was borrowed. The caller may not use its data any
// more.
func (l *Log) Return(e Event) {
	if e.in == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveLocked(e.in)
}

// nextLocked returns the first event after the number, and its chunk if it is output.
func (l *Log) nextLocked(after uint64) (Event, *chunk) {
	i := l.firstAfterLocked(after)
	hasExit := l.exitSeq > after
	if i < len(l.chunks) && !(hasExit && l.exitSeq < l.chunks[i].Seq) {
		c := &l.chunks[i]
		return Event{Kind: Output, Seq: c.Seq, Offset: c.offset, Output: c.Chunk, Waiting: l.waiting > 0}, c
	}
	switch {
	case hasExit:
		return Event{Kind: Exited, Seq: l.exitSeq, Offset: l.exitOffset, Exit: l.exit}, nil
	case l.closedSeq > after:
		return Event{Kind: Closed, Seq: l.closedSeq, Offset: l.total}, nil
	}
	return Event{}, nil
}

// firstAfterLocked returns the index of the first chunk after the number.
func (l *Log) firstAfterLocked(after uint64) int {
	return sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].Seq > after })
}

// Last returns the number given last.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// append numbers output, which belongs to the log from then on. It lies in the segment; nil
// means in memory of its own. Data that follows the last chunk in memory may extend it.
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
			// A copy, because the segment is this log's.
			background.append(stream, bytes.Clone(data), nil)
		}
		return
	case l.exitSeq > 0:
		l.latest = time.Now()
	}
	cost := int64(len(data))
	if n := len(l.chunks); n > 0 && l.chunks[n-1].grow(stream, data, l.last) {
		l.budget.use(cost)
	} else {
		l.last++
		c := chunk{
			Chunk:  protocol.Chunk{Seq: l.last, Stream: stream, Data: data},
			offset: l.total, stamp: l.budget.stamp(), in: in,
		}
		if in != nil {
			in.users++
		}
		cost = c.cost()
		l.chunks = append(l.chunks, c)
		l.budget.use(cost)
	}
	l.cost += cost
	l.total += uint64(len(data))
	l.budget.pool.counts.bytes.Add(uint64(len(data)))
	l.streamLocked(stream).total += uint64(len(data))
	for (l.cost > l.limit || l.lossy && l.budget.full()) && l.evictOldestLocked() {
	}
	l.offerLocked()
	l.signalLocked()
	lossy := l.lossy
	l.mu.Unlock()
	if !lossy { // a background log has no listener
		l.listener.Changed()
	}
}

// grow extends the last chunk, if nobody has seen it, by data that follows it in memory.
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

// Abort wakes waitRoom for good: output that has no room is lost from now on.
func (l *Log) Abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
}

func (l *Log) abortLocked() {
	l.aborted = true
	l.refuseLocked()
}

// refuseLocked wakes the streams that wait for room: there will be none.
func (l *Log) refuseLocked() {
	if !l.refusing {
		l.refusing = true
		close(l.unwanted)
		l.room.Broadcast()
	}
}

// Exit numbers the end of the leader.
func (l *Log) Exit(how protocol.ExitRecord) {
	l.mu.Lock()
	l.last++
	l.exitSeq, l.exitOffset, l.exit = l.last, l.total, how
	l.latest = time.Now()
	close(l.exitCh)
	l.signalLocked()
	l.mu.Unlock()
	l.listener.Changed()
}

// Close numbers the last event. When descendants still hold the process's streams,
// held is true, and what they write goes to the background log.
func (l *Log) Close(held bool) {
	l.mu.Lock()
	l.closedSeq = l.last + 1
	if !l.lossy {
		l.last++ // the end of background output is no event
	}
	if held {
		l.background = newBackgroundLog(l.limit, l.budget)
	}
	l.refuseLocked() // a stream that waits for room goes on in the background
	l.free = nil
	l.signalLocked()
	l.mu.Unlock()
	l.listener.Changed()
}

func (l *Log) signalLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Release gives the retained bytes back to the budget, those of the background log
// as well. The log is not used any more.
func (l *Log) Release() {
	l.release()
	if background := l.Background(); background != nil {
		background.release()
	}
}

func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
	l.budget.forget(l)
	l.budget.use(-l.cost)
	l.cost, l.chunks, l.free = 0, nil, nil
	l.dropHeadsLocked()
	if l.grace != nil {
		l.grace.Stop()
	}
}
