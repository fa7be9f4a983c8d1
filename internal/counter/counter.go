// Package counter provides the counters of a server's metrics. Counting costs an atomic
// addition or a short lock.
package counter

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Table counts things by their kind. Callers add kinds of a small, fixed set, because
// nothing removes one. The zero value is empty. All methods may be called concurrently.
type Table[Kind comparable] struct {
	mu sync.Mutex
	of map[Kind]uint64
}

// Add counts one more thing of a kind.
func (t *Table[Kind]) Add(kind Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = make(map[Kind]uint64)
	}
	t.of[kind]++
}

// All returns a copy of the counts by kind.
func (t *Table[Kind]) All() map[Kind]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.of)
}

// Bounds are the upper bounds of the buckets of a [Durations], which has one more for
// longer durations.
var Bounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second,
}

// Durations counts durations by their length. All methods may be called concurrently.
type Durations struct {
	buckets [len(Bounds) + 1]atomic.Uint64
	sum     atomic.Int64
}

// Add counts a duration.
func (d *Durations) Add(length time.Duration) {
	i := 0
	for i < len(Bounds) && length > Bounds[i] {
		i++
	}
	d.buckets[i].Add(1)
	d.sum.Add(int64(length))
}

// Read returns how many durations were counted, their sum, and how many were at most as
// long as each of Bounds. Durations that are counted meanwhile may be in some of the
// numbers only.
func (d *Durations) Read() (n uint64, sum time.Duration, atMost map[time.Duration]uint64) {
	atMost = make(map[time.Duration]uint64, len(Bounds))
	for i, bound := range Bounds {
		n += d.buckets[i].Load()
		atMost[bound] = n
	}
	return n + d.buckets[len(Bounds)].Load(), time.Duration(d.sum.Load()), atMost
}
