package output

// Writer lends memory that a stream is read into, and numbers what was read. The log's
// chunks share this memory, so that nothing is copied. One goroutine uses it.
type Writer struct {
	log     *Log
	stream  string
	segment *segment // being filled; nil at first
	size    int      // of the next segment
}

// Segments grow with the stream, so that an idle process costs little and a busy
// one needs few reads.
const (
	firstSegment = 2 << 10
	maxSegment   = maxChunkBytes
)

// Writer returns the writer of a stream. The log's snapshots include the stream from now
// on.
func (l *Log) Writer(stream string) *Writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streamLocked(stream)
	return &Writer{log: l, stream: stream, size: firstSegment}
}

// WaitRoom blocks while the log has no room and returns how many bytes may be read
// next. It returns 0 when nobody wants the output any more. Once the log is closed,
// the writer goes on in the background log.
func (w *Writer) WaitRoom() int {
	for {
		if room := w.log.waitRoom(); room > 0 {
			return room
		}
		background := w.log.Background()
		if background == nil {
			return 0
		}
		w.log, w.segment = background, nil
	}
}

// HasBuffer reports whether the writer has memory. Until it has, the caller should
// ask for it only when there is something to read.
func (w *Writer) HasBuffer() bool { return w.segment != nil }

// Buffer returns memory for up to room bytes. The caller reads into its beginning
// and calls Commit.
func (w *Writer) Buffer(room int) []byte {
	if w.segment == nil || !w.worthReading() {
		w.segment = w.log.nextSegment(w.segment, w.size)
	}
	buf := w.segment.buf
	free := buf[len(buf):cap(buf)]
	return free[:min(room, len(free))]
}

// worthReading reports whether the rest of the segment is worth a read.
func (w *Writer) worthReading() bool {
	free := cap(w.segment.buf) - len(w.segment.buf)
	return free > 0 && free >= w.size/4
}

// Commit numbers the n bytes that were read into Buffer.
func (w *Writer) Commit(n int) {
	from := len(w.segment.buf)
	w.segment.buf = w.segment.buf[:from+n]
	w.log.append(w.stream, w.segment.buf[from:], w.segment)
	if len(w.segment.buf) == cap(w.segment.buf) {
		w.size = min(2*w.size, maxSegment)
	}
}

// segment is memory that a stream reads into. The chunks of its output lie in it,
// one behind the other, and the connection's writer borrows them to encode them.
//
// A log fills a segment again when it has evicted all chunks in it and nobody has a
// part of it. Without that, making, clearing and collecting memory costs as much as
// encoding what is in it. A log keeps at most maxFreeSegments for that, none after
// its process has closed, and never one of which somebody keeps a part.
type segment struct {
	buf []byte // only the stream that fills it uses buf; its length is the used part

	// guarded by Log.mu
	users int  // chunks in it, borrowed events, and the stream that fills it
	kept  bool // a reader keeps a part of it for good
}

// maxFreeSegments bounds the memory that a log has besides what it retains.
const maxFreeSegments = 2

// nextSegment returns memory for a stream to fill after the last segment, which is
// nil at first.
func (l *Log) nextSegment(last *segment, size int) *segment {
	l.mu.Lock()
	l.leaveLocked(last)
	s := l.freeLocked(size)
	l.mu.Unlock()
	if s == nil {
		s = &segment{buf: make([]byte, 0, size)}
	}
	s.users = 1
	return s
}

// freeLocked removes a free segment of the size from the list and returns it, or
// nil. It drops smaller ones: a stream's segments only grow.
func (l *Log) freeLocked(size int) *segment {
	for n := len(l.free); n > 0; n = len(l.free) {
		s := l.free[n-1]
		l.free[n-1] = nil
		l.free = l.free[:n-1]
		if cap(s.buf) == size {
			return s
		}
	}
	return nil
}

// leaveLocked records that one user of a segment has finished with it.
func (l *Log) leaveLocked(s *segment) {
	if s == nil {
		return
	}
	s.users--
	if s.users == 0 && !s.kept && len(l.free) < maxFreeSegments && l.closedSeq == 0 {
		s.buf = s.buf[:0]
		l.free = append(l.free, s)
	}
}

// keepLocked returns a chunk's data, which the caller keeps for good.
func (c *chunk) keepLocked() []byte {
	if c.in != nil {
		c.in.kept = true
	}
	return c.Data
}
