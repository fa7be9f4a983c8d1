package output

import (
	"container/heap"
	"container/list"
	"math"
	"sync"
	"sync/atomic"

	"execserver/internal/quota"
)

// Budget bounds the memory in which the processes of one principal retain output. The
// principals of a server share one pool, and each may use its quota of it (see package
// quota).
//
// When a budget is exhausted, it evicts the oldest acknowledged output of its own
// principal, or of one that retains more, and then the heads kept for snapshots. When
// nothing is left to evict, children block, and continue in the order in which they
// blocked.
//
// All methods may be called concurrently. pool.mu may be locked while Log.mu is held.
type Budget struct {
	pool      *pool
	principal string
	used      atomic.Int64

	// guarded by pool.mu
	refs       int
	candidates candidateHeap // one for each log with evictable output
	queue      list.List     // of *waiter: the streams that wait for the budget, in order
}

// pool is shared by the budgets of all principals.
type pool struct {
	limit   int64
	used    atomic.Int64
	lastAge atomic.Uint64
	waiting atomic.Int64 // streams in the queues of all budgets; changed under mu
	counts  poolCounts

	mu      sync.Mutex
	budgets map[string]*Budget // by principal, those in use
}

// NewBudget makes a pool of limit bytes and returns the budget of quota.None.
func NewBudget(limit int64) *Budget {
	p := &pool{limit: limit, budgets: make(map[string]*Budget)}
	return p.budget(quota.None)
}

// ForPrincipal returns the budget of a principal in the same pool. The caller must call
// Release.
func (b *Budget) ForPrincipal(principal string) *Budget { return b.pool.budget(principal) }

func (p *pool) budget(principal string) *Budget {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.budgets[principal]
	if b == nil {
		b = &Budget{pool: p, principal: principal}
		p.budgets[principal] = b
	}
	b.refs++
	return b
}

// Release ends the use of a budget that ForPrincipal returned.
func (b *Budget) Release() {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if b.refs--; b.refs == 0 {
		delete(b.pool.budgets, b.principal)
	}
}

// Used returns the bytes of memory in which all principals retain output.
func (b *Budget) Used() int64 { return b.pool.used.Load() }

// Counts are the counters and gauges of a pool. Bytes are bytes of output.
type Counts struct {
	Bytes   uint64 // ever numbered
	Evicted uint64 // bytes evicted after their owner acknowledged them
	Dropped uint64 // bytes evicted or refused before any owner acknowledged them
	Stalls  uint64 // how often a stream began to wait for space

	Stalled         int   // streams that wait for space now
	Retained, Limit int64 // bytes of memory in which output is retained, and their limit
}

type poolCounts struct {
	bytes, evicted, dropped, stalls atomic.Uint64
	stalled                         atomic.Int64
}

// Counts returns the counters and gauges of the pool.
func (b *Budget) Counts() Counts {
	c := &b.pool.counts
	return Counts{
		Bytes: c.bytes.Load(), Evicted: c.evicted.Load(), Dropped: c.dropped.Load(), Stalls: c.stalls.Load(),
		Stalled: int(c.stalled.Load()), Retained: b.pool.used.Load(), Limit: b.pool.limit,
	}
}

// add counts n more bytes, or fewer if n is negative.
func (b *Budget) add(n int64) {
	b.used.Add(n)
	b.pool.used.Add(n)
	b.pool.advance()
}

// allowed returns how much the budget may use, given the use of the others.
func (b *Budget) allowed() int64 {
	others := b.pool.used.Load() - b.used.Load()
	if b.principal == quota.None {
		return b.pool.limit - others
	}
	return min(quota.Of(b.pool.limit), b.pool.limit-others)
}

// full reports whether the budget is used up.
func (b *Budget) full() bool { return b.used.Load() >= b.allowed() }

// nextAge returns the age of a new chunk.
func (b *Budget) nextAge() uint64 { return b.pool.lastAge.Add(1) }

// waiter is a stream that waits for space.
type waiter struct {
	wake chan struct{} // receives when the stream should check whether it may continue

	// guarded by pool.mu
	elem    *list.Element // in the queue of its budget; nil: not queued
	granted bool          // it was first in the queue when there was space
}

// notify makes the stream check whether it may continue.
func (w *waiter) notify() {
	select {
	case w.wake <- struct{}{}:
	default: // a notification is pending
	}
}

// advance lets the queued streams continue in order, as far as there is space. If output
// can be evicted instead, it notifies the first stream, which will do so. advance must be
// called after every change that may make either possible, including changes of another
// principal's use.
func (p *pool) advance() {
	if p.waiting.Load() > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.advanceLocked()
	}
}

func (p *pool) advanceLocked() {
	if p.waiting.Load() == 0 {
		return
	}
	var most int64 // the most that a principal with a candidate uses
	for _, b := range p.budgets {
		if b.candidates.Len() > 0 {
			most = max(most, b.used.Load())
		}
	}
	for _, b := range p.budgets {
		for b.queue.Len() > 0 && !b.full() {
			w := b.queue.Front().Value.(*waiter)
			w.granted = true
			b.dequeueLocked(w)
			w.notify()
		}
		if b.queue.Len() > 0 && (b.candidates.Len() > 0 || most > b.used.Load()) {
			b.queue.Front().Value.(*waiter).notify()
		}
	}
}

// admit reports whether a waiting stream may continue, and queues it if it is not queued
// yet.
func (b *Budget) admit(w *waiter) bool {
	b.pool.mu.Lock()
	if w.elem == nil && !w.granted {
		w.elem = b.queue.PushBack(w)
		b.pool.waiting.Add(1)
	}
	granted := w.granted
	b.pool.mu.Unlock()
	return granted || b.reclaim()
}

// dequeue removes a stream from the queue, if it is in it.
func (b *Budget) dequeue(w *waiter) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if w.elem != nil {
		b.dequeueLocked(w)
		b.pool.advanceLocked()
	}
}

func (b *Budget) dequeueLocked(w *waiter) {
	b.queue.Remove(w.elem)
	w.elem = nil
	b.pool.waiting.Add(-1)
}

// reclaimBytes is how much one reclaim tries to free, so that not every read needs one.
const reclaimBytes = 1 << 20

// reclaim evicts output until there is space, and reports whether there is.
func (b *Budget) reclaim() bool {
	if !b.full() {
		return true
	}
	for {
		allowed := b.allowed()
		if b.used.Load() <= max(allowed-reclaimBytes, allowed/2) || !b.evictOldest() {
			return !b.full()
		}
	}
}

// evictOldest evicts the oldest output of the principal that uses most, among those that
// the budget may evict from. Heads go last, and only while the budget is full. It returns
// false if it found nothing to evict.
func (b *Budget) evictOldest() bool {
	b.pool.mu.Lock()
	var most *Budget
	for _, from := range b.pool.budgets {
		if from.candidates.Len() > 0 && b.mayEvict(from) && (most == nil || from.before(most)) {
			most = from
		}
	}
	if most == nil || most.candidates.heads() && !b.full() {
		b.pool.mu.Unlock()
		return false
	}
	o := heap.Pop(&most.candidates).(*candidate)
	age := o.age
	b.pool.mu.Unlock()
	o.log.reclaim(age)
	return true
}

// mayEvict reports whether a budget may evict the output of another one, which must use
// more.
func (b *Budget) mayEvict(from *Budget) bool { return from == b || from.used.Load() > b.used.Load() }

// before reports whether to evict from b rather than from another budget.
func (b *Budget) before(other *Budget) bool {
	if b.candidates.heads() != other.candidates.heads() {
		return other.candidates.heads()
	}
	return b.used.Load() > other.used.Load()
}

// candidate is the oldest evictable output of a log.
type candidate struct {
	log   *Log
	age   uint64 // notEvictable if there is none. To change it, hold Log.mu, and pool.mu too while index >= 0.
	index int    // in the heap, or -1. Guarded by pool.mu.
}

// Lower ages are older. The age of a head is that of its log with headAge set, because
// heads are evicted last.
const (
	headAge      = 1 << 63
	notEvictable = math.MaxUint64
)

// offer adds or updates a candidate.
func (b *Budget) offer(o *candidate, age uint64) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	o.age = age
	if o.index < 0 {
		heap.Push(&b.candidates, o)
	} else {
		heap.Fix(&b.candidates, o.index)
	}
	b.pool.advanceLocked()
}

// removeCandidate removes a candidate.
func (b *Budget) removeCandidate(o *candidate) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if o.index >= 0 {
		heap.Remove(&b.candidates, o.index)
	}
}

// candidateHeap is a heap.Interface with the oldest first.
type candidateHeap []*candidate

// heads reports whether only heads are left to evict.
func (q candidateHeap) heads() bool { return q[0].age >= headAge }

func (q candidateHeap) Len() int           { return len(q) }
func (q candidateHeap) Less(i, j int) bool { return q[i].age < q[j].age }

func (q candidateHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *candidateHeap) Push(x any) {
	o := x.(*candidate)
	o.index = len(*q)
	*q = append(*q, o)
}

func (q *candidateHeap) Pop() any {
	n := len(*q) - 1
	o := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	o.index = -1
	return o
}
