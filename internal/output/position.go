package output

import "slices"

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
		l.lost = slices.DeleteFunc(l.lost, func(p Position) bool { return p.Seq <= seq })
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

// positionLocked returns the position after the number, which is above the acknowledged one.
func (l *Log) positionLocked(seq uint64) Position {
	at := Position{seq, l.total}
	i := l.firstAfterLocked(seq)
	if i < len(l.chunks) {
		at.Offset = l.chunks[i].offset
	}
	if i > 0 || len(l.lost) == 0 || i < len(l.chunks) && l.chunks[i].Seq == seq+1 {
		return at
	}
	// Output after the number was evicted, too.
	at.Offset = l.acked.Offset
	for _, p := range l.lost {
		if p.Seq <= seq {
			at.Offset = p.Offset
		}
	}
	return at
}

// maxLost bounds the positions that a log remembers after evicting what the owner had not
// acknowledged. An owner that acknowledges more than that later is told too many dropped bytes.
const maxLost = 1024

// loseLocked remembers the position after a chunk that is evicted although the owner has not
// acknowledged it: the owner may have received it, and acknowledge it when it comes back.
func (l *Log) loseLocked(c *chunk) {
	if !l.lossy && c.Seq > l.acked.Seq && len(l.lost) < maxLost {
		l.lost = append(l.lost, Position{c.Seq, c.offset + uint64(len(c.Data))})
	}
}
