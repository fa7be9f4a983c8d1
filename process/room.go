package process

import "time"

// Room for output in a log: what may be evicted, and who waits until it may.

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
// to it that it gets it when the reader that polls does not count any more, for which
// streams may wait as well. It is called whenever either may have become true.
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
