package output

import (
	"container/list"
	"sync"
	"sync/atomic"

	"execserver/internal/quota"
)

// Budget bounds the output that the processes of one principal retain together. The
// principals of a server have one pool, of which each may have its quota (see package quota).
//
// When a budget is used up, it evicts the oldest output that has been acknowledged, of its
// own principal or of one that retains more. Then it evicts the heads that are kept for
// snapshots. When there is nothing left to evict, children block, and continue in the
// order in which they blocked.
//
// All methods may be called concurrently. pool.mu may be locked while Log.mu is.
type Budget struct {
	pool    *pool
	of      string // the principal
	used    atomic.Int64
	waiting atomic.Int64 // length of turns

	// guarded by pool.mu
	users     int
	evictable byAge     // logs whose first chunk may be evicted, by the age that it had when they were offered
	headed    byAge     // logs that have heads, by their own age
	turns     list.List // of chan struct{}, one for each waiting stream, in order; the first receives when there may be room
}

// pool is what the budgets of all principals have together.
type pool struct {
	limit   int64
	used    atomic.Int64
	ages    atomic.Uint64
	waiting atomic.Int64 // of all budgets
	counts  poolCounts

	mu      sync.Mutex
	budgets map[string]*Budget // by principal, those that are in use
}

// NewBudget makes a pool of limit bytes. It returns the budget of quota.Everybody.
func NewBudget(limit int64) *Budget {
	p := &pool{limit: limit, budgets: make(map[string]*Budget)}
	return p.budget(quota.Everybody)
}

// Of returns the budget of a principal in the same pool. The caller must call Leave.
func (b *Budget) Of(principal string) *Budget { return b.pool.budget(principal) }

func (p *pool) budget(principal string) *Budget {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.budgets[principal]
	if b == nil {
		b = &Budget{pool: p, of: principal}
		p.budgets[principal] = b
	}
	b.users++
	return b
}

// Leave says that no log uses the budget any more, as far as one caller of Of knows.
func (b *Budget) Leave() {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(b.pool.budgets, b.of)
	}
}

// Used returns the bytes that all principals retain now.
func (b *Budget) Used() int64 { return b.pool.used.Load() }

// Counts are what all logs of a pool have seen and have. Bytes are those of output.
type Counts struct {
	Bytes   uint64 // ever numbered
	Evicted uint64 // bytes evicted after their owner had acknowledged them
	Dropped uint64 // bytes evicted or refused that no owner has acknowledged
	Stalls  uint64 // how often a stream began to wait for room

	Stalled         int   // streams that wait for room now
	Retained, Limit int64 // bytes retained now, with a little for each chunk, and allowed
}

type poolCounts struct {
	bytes, evicted, dropped, stalls atomic.Uint64
	stalled                         atomic.Int64
}

// Counts returns what the pool has seen and has.
func (b *Budget) Counts() Counts {
	c := &b.pool.counts
	return Counts{
		Bytes: c.bytes.Load(), Evicted: c.evicted.Load(), Dropped: c.dropped.Load(), Stalls: c.stalls.Load(),
		Stalled: int(c.stalled.Load()), Retained: b.pool.used.Load(), Limit: b.pool.limit,
	}
}

// use counts n bytes more. If that makes room, it wakes the first of each budget that
// waits for it.
func (b *Budget) use(n int64) {
	b.used.Add(n)
	b.pool.used.Add(n)
	if n >= 0 || b.pool.waiting.Load() == 0 {
		return
	}
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	for _, waits := range b.pool.budgets {
		if !waits.full() {
			waits.wakeLocked()
		}
	}
}

// allowed returns how much the budget may use while the others use what they do.
func (b *Budget) allowed() int64 {
	others := b.pool.used.Load() - b.used.Load()
	if b.of == quota.Everybody {
		return b.pool.limit - others
	}
	return min(quota.Of(b.pool.limit), b.pool.limit-others)
}

// full reports whether everything is used up.
func (b *Budget) full() bool { return b.used.Load() >= b.allowed() }

// stamp returns the age of a new chunk.
func (b *Budget) stamp() uint64 { return b.pool.ages.Add(1) }

// wakeLocked makes the first waiting stream check for room.
func (b *Budget) wakeLocked() {
	first := b.turns.Front()
	if first == nil {
		return
	}
	select {
	case first.Value.(chan struct{}) <- struct{}{}:
	default: // it has been woken already
	}
}

// offer says that the first chunk of a log, which has the given age, may be evicted.
func (b *Budget) offer(l *Log, age uint64) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	b.evictable.put(l, age)
	b.wakeReclaimersLocked()
}

// keepsHeads says that a log of the given age has heads.
func (b *Budget) keepsHeads(l *Log, age uint64) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	b.headed.put(l, age)
	b.wakeReclaimersLocked()
}

// wakeReclaimersLocked wakes the first of each budget that may evict what this one retains.
func (b *Budget) wakeReclaimersLocked() {
	if b.pool.waiting.Load() == 0 {
		return
	}
	for _, waits := range b.pool.budgets {
		if waits.mayEvict(b) {
			waits.wakeLocked()
		}
	}
}

// mayEvict reports whether a budget makes room by evicting what another one retains: not
// if that retains less.
func (b *Budget) mayEvict(from *Budget) bool { return from == b || from.used.Load() > b.used.Load() }

// forget says that a log retains nothing any more.
func (b *Budget) forget(l *Log) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	b.evictable.remove(l)
	b.headed.remove(l)
}

// wait waits until there is room for the output of a log, or the log drains. It makes room
// by evicting where it can. It returns false when nobody wants the log's output any more.
func (b *Budget) wait(l *Log) bool {
	if !b.full() && b.waiting.Load() == 0 {
		return true
	}
	draining := l.draining()
	turn := make(chan struct{}, 1)
	b.pool.mu.Lock()
	place := b.turns.PushBack(turn)
	b.waiting.Add(1)
	b.pool.waiting.Add(1)
	first := b.turns.Front() == place
	b.pool.mu.Unlock()
	defer func() {
		b.pool.mu.Lock()
		defer b.pool.mu.Unlock()
		b.turns.Remove(place)
		b.waiting.Add(-1)
		b.pool.waiting.Add(-1)
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

// reclaimBytes is how much one reclaim frees at least, if it can, so that not every read
// needs one.
const reclaimBytes = 1 << 20

// reclaim evicts the oldest output that may be evicted while there is no room, and reports
// whether there is room then. Only the first waiting stream calls it.
func (b *Budget) reclaim() bool {
	if !b.full() {
		return true
	}
	for b.exceeds(reclaimBytes) {
		l, age := b.popOldest(func(of *Budget) *byAge { return &of.evictable })
		if l == nil {
			break
		}
		l.evictAged(age)
	}
	for b.full() {
		l, _ := b.popOldest(func(of *Budget) *byAge { return &of.headed })
		if l == nil {
			return false
		}
		l.dropHeads()
	}
	return true
}

// exceeds reports whether the budget has used more than it should for so much room.
func (b *Budget) exceeds(room int64) bool {
	allowed := b.allowed()
	return b.used.Load() > max(allowed-room, allowed/2)
}

// popOldest removes and returns the oldest log of a queue of the principal that retains
// most, of those that the budget may evict from; nil if there is none.
func (b *Budget) popOldest(queue func(*Budget) *byAge) (l *Log, age uint64) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	var most *Budget
	for _, from := range b.pool.budgets {
		if queue(from).Len() > 0 && b.mayEvict(from) && (most == nil || from.used.Load() > most.used.Load()) {
			most = from
		}
	}
	if most == nil {
		return nil, 0
	}
	return queue(most).pop()
}
