package process

// Position is a place in a log, between two events.
type Position struct {
	Seq    uint64 // of the event before it, 0 at the beginning
	Offset uint64 // bytes of output before it
}

// Acked returns the position up to which the owner has everything.
func (l *Log) Acked() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// Ack notes that the owner has everything up to the number, so that it may be
// evicted, and returns the position up to which it now has. A number that has
// not been given yet stands for the last one.
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

// Rewind makes what comes after the position count as not acknowledged again,
// for a new owner that has not had it.
func (l *Log) Rewind(to Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to.Seq < l.acked.Seq {
		l.acked = to
	}
}

// Tail returns the position after everything that there is. What comes later
// gets numbers of its own.
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

// positionLocked is the position after the number; the output after it is still
// there.
func (l *Log) positionLocked(seq uint64) Position {
	if i := l.firstAfterLocked(seq); i < len(l.chunks) {
		return Position{seq, l.chunks[i].offset}
	}
	return Position{seq, l.total}
}
