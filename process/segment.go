package process

// segment is memory that a stream reads into; the chunks of its output lie in it,
// one behind the other. It is used again when the log has evicted all of them and
// nobody has a part of it: otherwise making, clearing and collecting memory would
// cost as much as encoding what is in it.
type segment struct {
	buf []byte // its length is what is used; of the stream that fills it

	// guarded by Log.mu
	users int  // chunks in it, events that are borrowed, and the stream that fills it
	kept  bool // somebody keeps a part of it for good
}

// maxSpareSegments bounds what a log has for its streams besides what it retains.
const maxSpareSegments = 2

// nextSegment gives a stream memory to fill after the last, nil for none.
func (l *Log) nextSegment(last *segment, size int) *segment {
	l.mu.Lock()
	l.leaveLocked(last)
	s := l.spareLocked(size)
	l.mu.Unlock()
	if s == nil {
		s = &segment{buf: make([]byte, 0, size)}
	}
	s.users = 1
	return s
}

// spareLocked returns a spare segment of a size; smaller ones have no use any more.
func (l *Log) spareLocked(size int) *segment {
	for n := len(l.spare); n > 0; n = len(l.spare) {
		s := l.spare[n-1]
		l.spare[n-1] = nil
		l.spare = l.spare[:n-1]
		if cap(s.buf) == size {
			return s
		}
	}
	return nil
}

// leaveLocked notes that one user of a segment is done with it.
func (l *Log) leaveLocked(s *segment) {
	if s == nil {
		return
	}
	s.users--
	if s.users == 0 && !s.kept && len(l.spare) < maxSpareSegments && l.closedSeq == 0 {
		s.buf = s.buf[:0]
		l.spare = append(l.spare, s)
	}
}

// keepLocked notes that somebody has a chunk's data for good.
func (c *chunk) keepLocked() []byte {
	if c.in != nil {
		c.in.kept = true
	}
	return c.Data
}

// Borrow is Next for who gives the event's data back, by Return.
func (l *Log) Borrow(after uint64) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.nextLocked(after)
	if c != nil && c.in != nil {
		c.in.users++
		e.in = c.in
	}
	return e, e.Kind != 0
}

// Return gives an event back that was borrowed; its data may not be used any more.
func (l *Log) Return(e Event) {
	if e.in == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveLocked(e.in)
}
