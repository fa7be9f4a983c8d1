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

// SetEvict says whether output that the owner does not have may be evicted.
func (l *Log) SetEvict(evict bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict = evict
	l.room.Broadcast()
	l.offerLocked()
}

// pollGrace is how long after its last read a reader that polls keeps what it
// has not read from being evicted.
const pollGrace = 5 * time.Second

// Poll notes that a reader which takes its output by polling has everything up
// to the number. What comes after is not evicted until it polls again, at most
// pollGrace.
func (l *Log) Poll(after uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.polled = max(l.polled, after)
	l.polling = time.Now().Add(pollGrace)
	l.room.Broadcast()
	l.offerLocked()
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

// evictOldestLocked drops the oldest chunk if that may be, but for what it holds
// of its stream's beginning.
func (l *Log) evictOldestLocked() bool {
	if len(l.chunks) == 0 || !l.evictableLocked(&l.chunks[0]) {
		return false
	}
	c := &l.chunks[0]
	freed := c.cost() - l.keepHeadLocked(c)
	l.cost -= freed
	l.budget.use(-freed)
	l.droppedBytes += uint64(len(c.Data))
	l.leaveLocked(c.in)
	*c = chunk{}
	l.chunks = l.chunks[1:]
	return true
}

func (l *Log) evictableLocked(c *chunk) bool {
	return l.evict || c.Seq <= l.acked.Seq && (c.Seq <= l.polled || l.graceLocked() <= 0)
}

// graceLocked is how long the reader that polls still counts.
func (l *Log) graceLocked() time.Duration { return time.Until(l.polling) }

// offerLocked lets the budget have the first chunk if it may be evicted, or sees
// to it that it gets it when the reader that polls does not count any more. It is
// called whenever either may have become true.
func (l *Log) offerLocked() {
	if l.offered || len(l.chunks) == 0 {
		return
	}
	c := &l.chunks[0]
	switch {
	case l.evictableLocked(c):
		l.offered = true
		l.budget.offer(l, c.stamp)
	case c.Seq > l.acked.Seq:
	case l.grace == nil:
		l.grace = time.AfterFunc(l.graceLocked(), l.endGrace)
	default:
		l.grace.Reset(l.graceLocked())
	}
}

// endGrace offers what a reader that may have stopped polling has not read.
func (l *Log) endGrace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room.Broadcast()
	l.offerLocked()
}

// evictAged evicts about maxChunkBytes of the oldest output, which the budget was
// offered at the given age.
func (l *Log) evictAged(age uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offered = false
	if len(l.chunks) > 0 && l.chunks[0].stamp == age { // else others may have older output by now
		for floor := l.cost - maxChunkBytes; l.cost > floor && l.evictOldestLocked(); {
		}
	}
	l.offerLocked()
}

// waitRoom blocks while the retention is full of output that may not be
// evicted, and returns how many bytes may be read then, which may exceed the
// limit by less than a chunk per stream; 0 means that the log takes no more
// output.
func (l *Log) waitRoom() int {
	if !l.ownRoom() || !l.lossy && !l.budget.wait(l) {
		return 0
	}
	// Not cut to what is left: the smaller the reads, the more of them.
	return int(min(l.limit, maxChunkBytes))
}

// ownRoom waits for room within the process's own limit. It returns false when
// output is not wanted any more.
func (l *Log) ownRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for told := false; !l.refuses && !l.makeRoomLocked() && !l.drainingLocked(); {
		if !told {
			told = true
			l.mu.Unlock()
			l.block()
			l.mu.Lock()
			defer func() { l.waiting-- }()
			continue
		}
		l.offerLocked() // for the end of the grace time, which makes room as well
		l.room.Wait()
	}
	return !l.refuses
}

// drain says that the leader has exited, and that output is taken without room until
// drained: the exit must be numbered although nobody takes the output before it.
// There is no more of that than the streams hold.
func (l *Log) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.drains)
	l.room.Broadcast()
}

func (l *Log) drained() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drains = nil
}

func (l *Log) drainingLocked() bool {
	select {
	case <-l.drains:
		return true
	default:
		return false
	}
}

// draining returns a channel that is closed when, and while, the log drains.
func (l *Log) draining() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drains
}

// makeRoomLocked evicts what it may while the retention is full, and says whether
// it is not any more.
func (l *Log) makeRoomLocked() bool {
	for l.cost >= l.limit && l.evictOldestLocked() {
	}
	return l.cost < l.limit
}

// block notes that a stream waits for room, and asks the owner to acknowledge
// what it has.
func (l *Log) block() {
	l.mu.Lock()
	l.waiting++
	l.mu.Unlock()
	l.blocked()
}

func (l *Log) unblock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
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
