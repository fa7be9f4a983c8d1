package process

import (
	"sync"
	"sync/atomic"
)

// Budget bounds the output retained by all processes together. When it is used
// up, the oldest output that its owner has is evicted first, whichever process
// it came from, then the beginnings that are kept for snapshots; when there is
// nothing left, children block.
//
// All methods may be called concurrently.
type Budget struct {
	limit int64
	used  atomic.Int64
	ages  atomic.Uint64

	mu      sync.Mutex
	logs    map[*Log]struct{}
	waiters int
	changed chan struct{} // closed when a waiter should look again
}

// NewBudget makes a budget of limit bytes.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit, logs: make(map[*Log]struct{}), changed: make(chan struct{})}
}

// Used returns the bytes retained now.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) add(l *Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.logs[l] = struct{}{}
}

func (b *Budget) remove(l *Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.logs, l)
}

func (b *Budget) use(n int64) { b.used.Add(n) }

// stamp returns the age of a new chunk.
func (b *Budget) stamp() uint64 { return b.ages.Add(1) }

// wake lets those that wait for the budget look again.
func (b *Budget) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters > 0 {
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// wait makes room by evicting, or waits until it looks as if there were some.
// It returns false at once when there is room, or when stop says so; true means
// that the caller should begin anew.
func (b *Budget) wait(stop func() bool) bool {
	if b.used.Load() < b.limit {
		return false
	}
	b.mu.Lock()
	b.waiters++
	changed := b.changed
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.waiters--
		b.mu.Unlock()
	}()
	if stop() || b.reclaim() {
		return true
	}
	<-changed
	return true
}

// reclaimBytes is how much one search for evictable output frees at least, if
// it can, so that the search does not happen for every read.
const reclaimBytes = 1 << 20

// reclaim evicts the oldest evictable output and says whether it found any.
func (b *Budget) reclaim() bool {
	b.mu.Lock()
	logs := make([]*Log, 0, len(b.logs))
	for l := range b.logs {
		logs = append(logs, l)
	}
	b.mu.Unlock()
	found := false
	for target := min(b.limit-reclaimBytes, b.limit/2); b.used.Load() > max(target, 0); {
		var oldest *Log
		var stamp uint64
		for _, l := range logs {
			if s, ok := l.oldestEvictable(); ok && (oldest == nil || s < stamp) {
				oldest, stamp = l, s
			}
		}
		if oldest == nil {
			return found || b.reclaimHeads(logs)
		}
		oldest.evictSome()
		found = true
	}
	return found
}

// oldestEvictable returns the age of the oldest chunk, if it may be evicted.
func (l *Log) oldestEvictable() (stamp uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.chunks) == 0 || !l.evictableLocked(&l.chunks[0]) {
		return 0, false
	}
	return l.chunks[0].stamp, true
}

// evictSome evicts the oldest chunks, about maxChunkBytes of them.
func (l *Log) evictSome() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for floor := l.cost - maxChunkBytes; l.cost > floor && l.evictOldestLocked(); {
	}
}
