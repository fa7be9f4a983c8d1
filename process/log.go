package process

import (
	"bytes"
	"context"
	"sort"
	"sync"
	"time"

	"execserver/protocol"
)

// maxChunkBytes is how large a chunk grows while nobody has seen it.
const maxChunkBytes = 64 << 10

// chunkCost is what a chunk counts against the retention besides its data, so
// that a child that writes single bytes does not cost many times its limit.
const chunkCost = 64

// Log numbers the events of one process and retains its output within a bound.
// Numbers start at 1 and have no gaps over output, exit and close.
//
// A chunk may grow until somebody has seen it; this is what gathers output
// while the receiver is busy, at no cost in latency when it is not.
//
// All methods may be called concurrently.
type Log struct {
	limit  int64
	budget *Budget
	notify func() // called without locks after every new event

	blocked func() // called without locks when waitRoom is about to wait

	unwanted chan struct{} // closed when refuses

	mu      sync.Mutex
	room    sync.Cond     // broadcast when output may have become evictable
	changed chan struct{} // closed at the next event; nil when nobody waits
	chunks  []chunk       // oldest first
	cost    int64         // of chunks and heads
	last    uint64        // the number given last
	total   uint64        // bytes of output numbered so far
	acked   Position      // the owner has everything up to here
	polled  uint64        // a reader that polls has everything up to here…
	polling time.Time     // …and counts until then
	grace   *time.Timer   // offers what that reader protects when polling is over; nil: not yet needed
	evict   bool          // evict what nobody has, rather than block
	offered bool          // the budget knows that the first chunk may be evicted
	aborted bool          // output is not waited for any more
	refuses bool          // it takes no more output: it is aborted or closed
	drains  chan struct{} // closed while draining; nil after
	waiting int           // streams that wait for room
	pace    pace
	spare   []*segment

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

type chunk struct {
	protocol.Chunk
	offset uint64 // bytes of output before it
	stamp  uint64 // orders chunks over all processes by age
	sealed bool   // somebody has seen it
	in     *segment
}

func (c *chunk) cost() int64 { return int64(len(c.Data)) + chunkCost }

// newLog makes a log that retains up to limit bytes within the budget.
func newLog(limit int64, budget *Budget, notify, blocked func()) *Log {
	l := &Log{
		limit: limit, budget: budget, notify: notify, blocked: blocked,
		headLimit: headLimit(limit), born: budget.stamp(), exitCh: make(chan struct{}),
		unwanted: make(chan struct{}),
		drains:   make(chan struct{}),
	}
	l.room.L = &l.mu
	return l
}

// EventKind tells what an Event is.
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

// Next returns the first event after the number, if there is one. A chunk that
// it returns does not grow any more; its data are the caller's to keep.
func (l *Log) Next(after uint64) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.nextLocked(after)
	if c != nil {
		c.keepLocked()
	}
	return e, e.Kind != 0
}

// nextLocked returns the first event after the number, and the chunk that it is of.
func (l *Log) nextLocked(after uint64) (Event, *chunk) {
	i := l.firstAfterLocked(after)
	hasExit := l.exitSeq > after
	if i < len(l.chunks) && !(hasExit && l.exitSeq < l.chunks[i].Seq) {
		c := &l.chunks[i]
		c.sealed = true
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

// firstAfterLocked is the index of the first chunk after the number.
func (l *Log) firstAfterLocked(after uint64) int {
	return sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].Seq > after })
}

// Last returns the number given last.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// append adds output; data belongs to the log from then on, and is contiguous
// with the chunk before where the memory of the two is: in the segment, or of its
// own when that is nil.
func (l *Log) append(stream string, data []byte, in *segment) {
	l.mu.Lock()
	switch {
	case l.aborted:
		l.droppedBytes += uint64(len(data))
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
	l.streamLocked(stream).total += uint64(len(data))
	for (l.cost > l.limit || l.lossy && l.budget.full()) && l.evictOldestLocked() {
	}
	l.offerLocked()
	l.signalLocked()
	if l.lossy {
		l.mu.Unlock()
		return
	}
	tell := l.pace.now(len(data), l.growingLocked(), l.tellLate)
	l.mu.Unlock()
	if tell {
		l.notify()
	}
}

// growingLocked is the size of the chunk that may still grow.
func (l *Log) growingLocked() int {
	if len(l.chunks) == 0 {
		return maxChunkBytes // evicted already, which is to be told
	}
	return len(l.chunks[len(l.chunks)-1].Data)
}

// tellLate tells of output that was gathered.
func (l *Log) tellLate() {
	l.mu.Lock()
	l.pace.armed = false
	l.mu.Unlock()
	l.notify()
}

// grow extends an unseen chunk, the one numbered last, by data that follows it
// in memory.
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

// abort wakes waitRoom for good.
func (l *Log) abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
}

func (l *Log) abortLocked() {
	l.aborted = true
	l.refuseLocked()
}

// refuseLocked wakes whoever waits for room, for there is none any more.
func (l *Log) refuseLocked() {
	if !l.refuses {
		l.refuses = true
		close(l.unwanted)
		l.room.Broadcast()
	}
}

// exited numbers the end of the leader.
func (l *Log) exited(how protocol.ExitRecord) {
	l.mu.Lock()
	l.last++
	l.exitSeq, l.exitOffset, l.exit = l.last, l.total, how
	l.latest = time.Now()
	close(l.exitCh)
	l.signalLocked()
	l.mu.Unlock()
	l.notify()
}

// closed numbers the last event. Output that comes later goes to the background
// log, which is nil when none will come.
func (l *Log) closed(background *Log) {
	l.mu.Lock()
	l.closedSeq = l.last + 1
	if !l.lossy {
		l.last++ // the end of background output is no event
	}
	l.background = background
	l.refuseLocked() // a stream that waits for room goes on in the background
	l.spare = nil
	l.signalLocked()
	l.mu.Unlock()
	l.notify()
}

func (l *Log) signalLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// release gives the retained bytes back to the budget; the log is not used any
// more.
func (l *Log) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abortLocked()
	l.budget.forget(l)
	l.budget.use(-l.cost)
	l.cost, l.chunks, l.spare = 0, nil, nil
	l.dropHeadsLocked()
	l.pace.stop()
	if l.grace != nil {
		l.grace.Stop()
	}
}

// Read collects events after the number by the rules of process/read
// (PROTOCOL.md, "process/read"); it never waits.
func (l *Log) Read(after uint64, maxBytes *uint64) *protocol.ReadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &protocol.ReadResult{
		NextSeq:      l.last + 1,
		Exited:       l.exitSeq > 0,
		Closed:       l.closedSeq > 0,
		DroppedBytes: l.droppedBytes,
	}
	if r.Exited {
		how := l.exit
		r.Exit, r.SandboxDenied = &how, how.SandboxDenied
	}
	var size uint64
	for i := l.firstAfterLocked(after); i < len(l.chunks); i++ {
		c := &l.chunks[i]
		n := uint64(len(c.Data))
		if maxBytes != nil && len(r.Chunks) > 0 && size+n > *maxBytes {
			break
		}
		size += n
		c.sealed = true
		c.keepLocked()
		r.Chunks = append(r.Chunks, c.Chunk)
		if maxBytes != nil && size >= *maxBytes {
			break
		}
	}
	if maxBytes != nil && len(r.Chunks) > 0 {
		r.NextSeq = r.Chunks[len(r.Chunks)-1].Seq + 1
	}
	if l.droppedBytes > 0 {
		r.FirstSeq = l.last + 1
		if len(l.chunks) > 0 {
			r.FirstSeq = l.chunks[0].Seq
		}
	}
	return r
}

// ready reports whether a process/read after the number returns at once.
func (l *Log) readyLocked(after uint64) bool {
	return l.firstAfterLocked(after) < len(l.chunks) || l.closedSeq > 0 || l.exitSeq > after
}

// Wait waits until Read has something to tell, or ctx ends.
func (l *Log) Wait(ctx context.Context, after uint64) {
	for {
		l.mu.Lock()
		if l.readyLocked(after) {
			l.mu.Unlock()
			return
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// IsClosed reports whether the closed event is numbered.
func (l *Log) IsClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closedSeq > 0
}

// SizeAfter is about how many bytes the answer to a process/read takes on the
// wire; see Read.
func (l *Log) SizeAfter(after uint64, maxBytes *uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, output := 512, uint64(0)
	for i := l.firstAfterLocked(after); i < len(l.chunks); i++ {
		n := len(l.chunks[i].Data)
		if maxBytes != nil && output > 0 && output+uint64(n) > *maxBytes {
			break
		}
		output += uint64(n)
		size += chunkCost + n/3*4 + 4
	}
	return size
}
