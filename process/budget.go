package process

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// Budget bounds the output retained by all processes together. When it is used
// up, the oldest output that its owner has is evicted first, whichever process
// it came from, then the beginnings that are kept for snapshots; when there is
// nothing left, children block and go on in the order in which they came.
//
// All methods may be called concurrently. Budget.mu is taken after Log.mu.
type Budget struct {
	limit   int64
	used    atomic.Int64
	ages    atomic.Uint64
	waiting atomic.Int64 // length of turns

	mu        sync.Mutex
	evictable byAge     // logs whose first chunk may be evicted, as old as that was when they were offered
	headed    byAge     // logs that hold beginnings, as old as they are
	turns     list.List // of chan struct{}: those that wait, the first one first; sent to when the first should look for room
}

// NewBudget makes a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit}
}

// Used returns the bytes retained now.
func (b *Budget) Used() int64 { return b.used.Load() }

// use counts n bytes more. Whoever waits learns that there is room again.
func (b *Budget) use(n int64) {
	if now := b.used.Add(n); now < b.limit && now-n >= b.limit {
		b.wake()
	}
}

// full reports whether everything is used up.
func (b *Budget) full() bool { return b.used.Load() >= b.limit }

// stamp returns the age of a new chunk.
func (b *Budget) stamp() uint64 { return b.ages.Add(1) }

// wake has the first of those that wait look for room.
func (b *Budget) wake() {
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakeLocked()
}

func (b *Budget) wakeLocked() {
	first := b.turns.Front()
	if first == nil {
		return
	}
	select {
	case first.Value.(chan struct{}) <- struct{}{}:
	default: // it is going to look anyway
	}
}

// offer says that the first chunk of a log, as old as given, may be evicted.
func (b *Budget) offer(l *Log, age uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.evictable.put(l, age)
	b.wakeLocked()
}

// keepsHeads says that a log, as old as given, holds beginnings.
func (b *Budget) keepsHeads(l *Log, age uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.headed.put(l, age)
	b.wakeLocked()
}

// forget says that a log retains nothing any more.
func (b *Budget) forget(l *Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.evictable.remove(l)
	b.headed.remove(l)
}

// wait waits until there is room for the output of a log, and makes it by evicting
// where it can, or until the log drains. It returns false when the log's output is not
// wanted any more.
func (b *Budget) wait(l *Log) bool {
	if b.used.Load() < b.limit && b.waiting.Load() == 0 {
		return true
	}
	draining := l.draining()
	turn := make(chan struct{}, 1)
	b.mu.Lock()
	place := b.turns.PushBack(turn)
	b.waiting.Add(1)
	first := b.turns.Front() == place
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.turns.Remove(place)
		b.waiting.Add(-1)
		b.wakeLocked() // there may be room for the next one, too
	}()
	if first && b.reclaim() {
		return true
	}
	l.block()
	defer l.unblock()
	for {
		select {
		case <-turn:
			if b.reclaim() {
				return true
			}
		case <-draining:
			return true
		case <-l.unwanted:
			return false
		}
	}
}

// reclaimBytes is how much one search for evictable output frees at least, if
// it can, so that the search does not happen for every read.
const reclaimBytes = 1 << 20

// reclaim evicts the oldest evictable output while there is no room, and says
// whether there is some then. Only the first of those that wait calls it.
func (b *Budget) reclaim() bool {
	if b.used.Load() < b.limit {
		return true
	}
	for target := max(b.limit-reclaimBytes, b.limit/2); b.used.Load() > target; {
		l, age := b.takeOldest(&b.evictable)
		if l == nil {
			break
		}
		l.evictAged(age)
	}
	for b.used.Load() >= b.limit {
		l, _ := b.takeOldest(&b.headed)
		if l == nil {
			return false
		}
		l.giveHeadsUp()
	}
	return true
}

// takeOldest takes the oldest log from a queue of the budget; nil: there is none.
func (b *Budget) takeOldest(q *byAge) (l *Log, age uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return q.take()
}
