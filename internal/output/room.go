package output

import "time"

// This file makes room for output in a log: it evicts what it may, and waits otherwise.

// SetEvict says whether output that is not acknowledged may be evicted.
func (l *Log) SetEvict(evict bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict = evict
	l.room.Broadcast()
	l.offerLocked()
}

// pollGrace is how long after its last read a polling reader protects what it has not read
// from eviction.
const pollGrace = 5 * time.Second

// Poll records that a polling reader has everything up to the number. What comes after is
// not evicted until it polls again, or pollGrace is over.
func (l *Log) Poll(after uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.polled = max(l.polled, after)
	l.pollEnd = time.Now().Add(pollGrace)
	l.room.Broadcast()
	l.offerLocked()
}

// evictOldestLocked evicts the oldest chunk if it may, and keeps what belongs to its
// stream's head.
func (l *Log) evictOldestLocked() bool {
	if len(l.chunks) == 0 || !l.evictableLocked(&l.chunks[0]) {
		return false
	}
	c := &l.chunks[0]
	freed := c.cost() - l.keepHeadLocked(c)
	l.cost -= freed
	l.budget.use(-freed)
	l.droppedBytes += uint64(len(c.Data))
	if counts := &l.budget.pool.counts; c.Seq <= l.acked.Seq {
		counts.evicted.Add(uint64(len(c.Data)))
	} else {
		counts.dropped.Add(uint64(len(c.Data)))
	}
	l.loseLocked(c)
	l.leaveLocked(c.in)
	*c = chunk{}
	l.chunks = l.chunks[1:]
	return true
}

func (l *Log) evictableLocked(c *chunk) bool {
	return l.evict || c.Seq <= l.acked.Seq && (c.Seq <= l.polled || l.graceLocked() <= 0)
}

// graceLocked returns how long the polling reader still protects what it has not read.
func (l *Log) graceLocked() time.Duration { return time.Until(l.pollEnd) }

// offerLocked offers the first chunk to the budget if it may be evicted. If only a polling
// reader protects it, a timer offers it when the grace is over. It must be called
// whenever either may have become true.
func (l *Log) offerLocked() {
	if len(l.chunks) == 0 {
		return
	}
	c := &l.chunks[0]
	switch {
	case l.evictableLocked(c):
		if !l.offered {
			l.offered = true
			l.budget.offer(l, c.stamp)
		}
	case c.Seq > l.acked.Seq:
	case l.grace == nil:
		l.grace = time.AfterFunc(l.graceLocked(), l.endGrace)
	default:
		l.grace.Reset(l.graceLocked())
	}
}

// endGrace offers what a reader that may have stopped polling has protected.
func (l *Log) endGrace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room.Broadcast()
	l.offerLocked()
}

// evictAged evicts about maxChunkBytes of the oldest output, which was offered to the
// budget with the given age.
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

// waitRoom blocks while the retention is full of output that may not be evicted. It
// returns how many bytes may be read then, which exceeds the limit by less than a chunk
// per stream. 0 means that the log accepts no more output.
func (l *Log) waitRoom() int {
	if !l.ownRoom() || !l.lossy && !l.budget.wait(l) {
		return 0
	}
	// Do not cut it to the room that is left: small reads cost more.
	return int(min(l.limit, maxChunkBytes))
}

// ownRoom waits for room within the log's own limit. It returns false when the log accepts
// no more output.
func (l *Log) ownRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for blocked := false; !l.refusing && !l.makeRoomLocked() && !l.drainingLocked(); {
		if !blocked {
			blocked = true
			l.mu.Unlock()
			l.block()
			l.mu.Lock()
			defer l.unblockLocked()
			continue
		}
		l.offerLocked() // for the end of the grace time, which makes room as well
		l.room.Wait()
	}
	return !l.refusing
}

// Drain says that the leader has exited. Until Drained the log accepts output without
// room, because the exit must be numbered although nobody acknowledges the output before
// it. There is no more of that than the streams hold.
func (l *Log) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.drains)
	l.room.Broadcast()
}

// Drained ends what Drain has begun.
func (l *Log) Drained() {
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

// makeRoomLocked evicts what it may while the retention is full, and reports whether there
// is room then.
func (l *Log) makeRoomLocked() bool {
	for l.cost >= l.limit && l.evictOldestLocked() {
	}
	return l.cost < l.limit
}

// block records that a stream waits for room, and tells the listener.
func (l *Log) block() {
	l.mu.Lock()
	l.waiting++
	l.budget.pool.counts.stalls.Add(1)
	l.budget.pool.counts.stalled.Add(1)
	l.mu.Unlock()
	l.listener.Blocked()
}

func (l *Log) unblock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unblockLocked()
}

func (l *Log) unblockLocked() {
	l.waiting--
	l.budget.pool.counts.stalled.Add(-1)
}
