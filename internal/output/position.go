package output

// Position is a place in a log, between two events.
type Position struct {
	Seq    uint64 // of the event before it, 0 at the beginning
	Offset uint64 // bytes of output before it
}

// Acked returns the position up to which the owner has acknowledged everything.
func (l *Log) Acked() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// Ack records that the owner has everything up to the number, which may be evicted from
// then on. It returns the position of what is acknowledged now. A number that no event
// has yet stands for the last one.
func (l *Log) Ack(seq uint64) Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = min(seq, l.last)
	if seq > l.acked.Seq {
		if n := len(l.chunks); n > 0 && l.chunks[n-1].Seq <= seq {
			l.chunks[n-1].sealed = true // what it grew by would not be acknowledged
		}
		l.acked = l.positionLocked(seq)
		l.room.Broadcast()
		l.offerLocked()
	}
	return l.acked
}

// Rewind makes everything after the position not acknowledged again, for a new owner that
// does not have it.
func (l *Log) Rewind(to Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to.Seq < l.acked.Seq {
		l.acked = to
	}
}

// Tail returns the position after the last event. Later output gets later numbers.
func (l *Log) Tail() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealLocked()
	return Position{l.last, l.total}
}

// sealLocked keeps the last chunk from growing.
func (l *Log) sealLocked() {
	if n := len(l.chunks); n > 0 {
		l.chunks[n-1].sealed = true
	}
}

// positionLocked returns the position after the number. The output after it must still be
// retained.
func (l *Log) positionLocked(seq uint64) Position {
	if i := l.firstAfterLocked(seq); i < len(l.chunks) {
		return Position{seq, l.chunks[i].offset}
	}
	return Position{seq, l.total}
}
