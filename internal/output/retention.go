package output

import (
	"slices"
	"time"
)

// Acked returns the position up to which the owner has acknowledged everything.
func (l *Log) Acked() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// Ack records that the owner has everything up to the sequence number, or to the last event
// if that is lower. Acknowledged output may be evicted. Ack returns the acknowledged
// position.
func (l *Log) Ack(seq uint64) Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = min(seq, l.last)
	if seq > l.acked.Seq {
		if n := len(l.chunks); n > 0 && l.chunks[n-1].Seq <= seq {
			l.chunks[n-1].sealed = true // or later growth would count as acknowledged
		}
		l.acked = l.positionLocked(seq)
		l.evictedUnacked = slices.DeleteFunc(l.evictedUnacked, func(p Position) bool { return p.Seq <= seq })
		l.advanceLocked()
	}
	return l.acked
}

// Rewind withdraws the acknowledgement of everything after the position, for a new owner
// that does not have it.
func (l *Log) Rewind(to Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to.Seq < l.acked.Seq {
		l.acked = to
	}
}

// SetEvict sets whether unacknowledged output may be evicted.
func (l *Log) SetEvict(evict bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict = evict
	l.advanceLocked()
}

// pollGrace is how long after its last read a polling reader protects later output from
// eviction.
const pollGrace = 5 * time.Second

// Poll records that a polling reader has everything up to the sequence number. Later output
// is protected until the next Poll, at most for pollGrace.
func (l *Log) Poll(after uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.polled = max(l.polled, after)
	l.startPollGraceLocked()
	l.advanceLocked()
}

// HoldPoll extends the protection of Poll until pollGrace after the call of release: a reader
// that still waits has not received the output that ends its wait.
func (l *Log) HoldPoll() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pollHolds++
	return l.releasePoll
}

func (l *Log) releasePoll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pollHolds--
	l.startPollGraceLocked()
}

func (l *Log) startPollGraceLocked() {
	l.pollEnd = time.Now().Add(pollGrace)
	if l.pollTimer == nil {
		l.pollTimer = time.AfterFunc(pollGrace, l.endPoll)
	} else {
		l.pollTimer.Reset(pollGrace)
	}
}

func (l *Log) endPoll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advanceLocked()
}

// Drain is called when the leader has exited. Until Drained is called, the log accepts output
// beyond its limit, so that the exit can be numbered even if nothing is acknowledged. The
// excess is at most what the streams hold.
func (l *Log) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	l.advanceLocked()
}

// Drained ends the state that Drain has begun.
func (l *Log) Drained() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = false
}

// advanceLocked notifies the streams that wait for space, and updates the log's eviction
// candidate. It must be called after every change that may let a stream continue or output
// be evicted.
func (l *Log) advanceLocked() {
	for _, w := range l.waiters {
		w.notify()
	}
	l.updateCandidateLocked()
}

// updateCandidateLocked offers the budget the oldest evictable output, unless the candidate
// is up to date.
func (l *Log) updateCandidateLocked() {
	if age := l.oldestLocked(); age < l.candidate.age {
		l.budget.offer(&l.candidate, age)
	}
}

// oldestLocked returns the age of the oldest evictable output, or notEvictable.
func (l *Log) oldestLocked() uint64 {
	switch {
	case len(l.chunks) > 0 && l.evictableLocked(&l.chunks[0]):
		return l.chunks[0].age
	case slices.ContainsFunc(l.streams, func(r streamRecord) bool { return len(r.head) > 0 }):
		return l.created | headAge
	default:
		return notEvictable
	}
}

func (l *Log) evictableLocked(c *chunk) bool {
	return l.evict || c.Seq <= l.acked.Seq && (c.Seq <= l.polled || l.pollHolds == 0 && !time.Now().Before(l.pollEnd))
}

// reclaim evicts about maxChunkBytes of the candidate for the budget.
func (l *Log) reclaim(age uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.candidate.age != age {
		return // the candidate has been replaced by an older one
	}
	l.candidate.age = notEvictable
	switch {
	case l.oldestLocked() != age: // the evictable output has changed
	case age >= headAge:
		l.dropHeadsLocked()
	default:
		for floor := l.cost - maxChunkBytes; l.cost > floor && l.evictOldestLocked(); {
		}
	}
	l.updateCandidateLocked()
}

// evictOldestLocked evicts the oldest chunk if it may, and keeps the part that belongs to
// its stream's head.
func (l *Log) evictOldestLocked() bool {
	if len(l.chunks) == 0 || !l.evictableLocked(&l.chunks[0]) {
		return false
	}
	c := &l.chunks[0]
	l.keepHeadLocked(c)
	l.droppedBytes += uint64(len(c.Data))
	if counts := &l.budget.pool.counts; c.Seq <= l.acked.Seq {
		counts.evicted.Add(uint64(len(c.Data)))
	} else {
		counts.dropped.Add(uint64(len(c.Data)))
	}
	l.noteEvictedLocked(c)
	l.removeOldestLocked()
	return true
}

// maxHeadBytes bounds the head of a stream: the beginning of its output, which is kept for
// snapshots when its chunks are evicted.
const maxHeadBytes = 64 << 10

// headLimit returns the bound of a head, which leaves most of the retention to the latest
// output. A background log has no heads.
func (l *Log) headLimit() int {
	if l.lossy {
		return 0
	}
	return int(min(maxHeadBytes, l.limit/8))
}

// keepHeadLocked copies the part of a chunk that belongs to its stream's head.
func (l *Log) keepHeadLocked(c *chunk) {
	r := l.streamLocked(c.Stream)
	n := min(l.headLimit()-len(r.head), len(c.Data))
	if r.lost || n <= 0 {
		return
	}
	before := cap(r.head)
	r.head = append(r.head, c.Data[:n]...)
	l.cost += int64(n)
	l.budget.add(int64(cap(r.head) - before))
}

func (l *Log) dropHeadsLocked() {
	for i := range l.streams {
		r := &l.streams[i]
		l.cost -= int64(len(r.head))
		l.budget.add(-int64(cap(r.head)))
		r.lost = r.lost || len(r.head) > 0
		r.head = nil
	}
}

// positionLocked returns the position after the sequence number, which is above the
// acknowledged one.
func (l *Log) positionLocked(seq uint64) Position {
	at := Position{seq, l.total}
	i := l.firstAfterLocked(seq)
	if i < len(l.chunks) {
		at.Offset = l.chunks[i].offset
	}
	if i > 0 || len(l.evictedUnacked) == 0 || i < len(l.chunks) && l.chunks[i].Seq == seq+1 {
		return at
	}
	// Output after the sequence number was evicted as well.
	at.Offset = l.acked.Offset
	for _, p := range l.evictedUnacked {
		if p.Seq <= seq {
			at.Offset = p.Offset
		}
	}
	return at
}

// maxEvictedUnacked bounds the remembered positions of evicted, unacknowledged output. An
// owner that later acknowledges output beyond them gets too high a count of dropped bytes.
const maxEvictedUnacked = 1024

// noteEvictedLocked remembers the position after an evicted chunk that is not acknowledged:
// the owner may have received it, and acknowledge it after a reconnect.
func (l *Log) noteEvictedLocked(c *chunk) {
	if !l.lossy && c.Seq > l.acked.Seq && len(l.evictedUnacked) < maxEvictedUnacked {
		l.evictedUnacked = append(l.evictedUnacked, Position{c.Seq, c.offset + uint64(len(c.Data))})
	}
}
