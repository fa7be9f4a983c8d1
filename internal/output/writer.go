package output

import (
	"slices"
	"sync"
)

// Writer lends the memory that a stream is read into, and numbers the output. Chunks share
// this memory, so nothing is copied. A Writer must be used by one goroutine only.
type Writer struct {
	log     *Log
	stream  string
	segment *segment // being filled; nil at first
	size    int      // of the next segment
}

// Segments grow with the stream, so that an idle process costs little and a busy one needs
// few reads.
const (
	minSegment = 2 << 10
	maxSegment = maxChunkBytes
)

// Writer returns the writer of a stream, which the log's snapshots include from now on.
func (l *Log) Writer(stream string) *Writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streamLocked(stream)
	return &Writer{log: l, stream: stream, size: minSegment}
}

// Reserve blocks while there is no space and returns how many bytes may be read next. It
// returns 0 if no more output is accepted. Once the log is closed, the writer continues in
// the background log.
func (w *Writer) Reserve() int {
	for {
		if n := w.log.reserve(); n > 0 {
			return n
		}
		background := w.log.Background()
		if background == nil {
			return 0
		}
		w.log, w.segment = background, nil
	}
}

// HasBuffer reports whether the writer has a buffer. If not, the caller should call Buffer
// only when there is something to read.
func (w *Writer) HasBuffer() bool { return w.segment != nil }

// Buffer returns a buffer of up to max bytes. The caller reads into its beginning and calls
// Commit.
func (w *Writer) Buffer(max int) []byte {
	if w.segment == nil || !w.hasUsableSpace() {
		w.segment = w.log.nextSegment(w.segment, w.size)
		w.size = min(2*w.size, maxSegment)
	}
	buf := w.segment.buf
	free := buf[len(buf):cap(buf)]
	return free[:min(max, len(free))]
}

// hasUsableSpace reports whether the rest of the segment is worth a read.
func (w *Writer) hasUsableSpace() bool {
	return w.segment.size-len(w.segment.buf) >= w.segment.size/4
}

// Commit numbers the first n bytes of the Buffer.
func (w *Writer) Commit(n int) {
	from := len(w.segment.buf)
	w.segment.buf = w.segment.buf[:from+n]
	w.log.append(w.stream, w.segment.buf[from:], w.segment)
}

// reserve blocks while the log or the budget is full of output that may not be evicted. It
// returns how many bytes may be read, or 0 if the log accepts no more output. A read may
// exceed the limit by less than a chunk per stream.
func (l *Log) reserve() int {
	s := l.readState()
	reclaimed := true
	if s != readBlocked && s != readRefused && !l.lossy {
		reclaimed = l.budget.reclaim() // also while draining: to make room for others
	}
	if s == readBlocked || s == readNeedsBudget && !reclaimed {
		s = l.waitForSpace()
	}
	if s == readRefused {
		return 0
	}
	// Do not reduce it to the remaining space: small reads cost more.
	return int(min(l.limit, maxChunkBytes))
}

// waitForSpace waits until a stream may read, or is refused.
func (l *Log) waitForSpace() readState {
	w := &waiter{wake: make(chan struct{}, 1)}
	defer l.budget.dequeue(w)
	l.addWaiter(w)
	defer l.removeWaiter(w)
	for {
		switch s := l.readState(); {
		case s == readBlocked:
			l.budget.dequeue(w) // do not hold up others while this log is full
		case s != readNeedsBudget || l.budget.admit(w):
			return s
		}
		<-w.wake
	}
}

// readState is whether a stream may read.
type readState byte

const (
	readRefused     readState = iota // the log accepts no more output
	readBlocked                      // the log is full
	readNeedsBudget                  // the log has space; the budget must have some, too
	readDraining                     // read regardless of space
)

// readState evicts what it may if the log is full.
func (l *Log) readState() readState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusesOutputLocked() {
		return readRefused
	}
	for l.cost >= l.limit && l.evictOldestLocked() {
	}
	switch {
	case l.draining:
		return readDraining
	case l.cost >= l.limit:
		return readBlocked
	default:
		return readNeedsBudget
	}
}

// addWaiter records that a stream waits for space, and notifies the listener.
func (l *Log) addWaiter(w *waiter) {
	l.mu.Lock()
	l.waiters = append(l.waiters, w)
	l.budget.pool.counts.stalls.Add(1)
	l.budget.pool.counts.stalled.Add(1)
	l.mu.Unlock()
	l.listener.Blocked()
}

func (l *Log) removeWaiter(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters = slices.DeleteFunc(l.waiters, func(o *waiter) bool { return o == w })
	l.budget.pool.counts.stalled.Add(-1)
}

// segment is memory that a stream is read into. The chunks of its output are consecutive
// slices of it, and a connection borrows them to encode them. All its memory counts against
// the budget as long as a chunk lies in it.
//
// A segment is recycled when it has no chunks and no references. Allocating, clearing and
// collecting the memory would cost as much as encoding its content.
type segment struct {
	size int    // of its memory
	buf  []byte // used by the filling stream only; its length is the used part

	// guarded by Log.mu
	chunks int  // that lie in it
	refs   int  // borrowed events, and the filling stream
	pinned bool // a reader has retained a slice of it
}

// freeSegments holds recycled segments of maxSegment bytes.
var freeSegments sync.Pool

// nextSegment returns a segment to fill after the last one, which may be nil.
func (l *Log) nextSegment(last *segment, size int) *segment {
	if last != nil {
		l.mu.Lock()
		last.releaseLocked()
		l.mu.Unlock()
	}
	if size == maxSegment {
		if s, ok := freeSegments.Get().(*segment); ok {
			s.refs = 1
			return s
		}
	}
	return &segment{size: size, buf: make([]byte, 0, size), refs: 1}
}

// releaseLocked drops one reference.
func (s *segment) releaseLocked() {
	s.refs--
	s.recycleLocked()
}

// recycleLocked recycles the segment if it is unused.
func (s *segment) recycleLocked() {
	if s.refs == 0 && s.chunks == 0 && !s.pinned && s.size == maxSegment {
		s.buf = s.buf[:0]
		freeSegments.Put(s)
	}
}

// pinLocked returns a chunk's data, which the caller may retain.
func (c *chunk) pinLocked() []byte {
	c.in.pinned = true
	return c.Data
}
