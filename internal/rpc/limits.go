package rpc

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// admission bounds the unanswered requests.
type admission struct {
	maxBytes int64
	maxCount int

	mu       sync.Mutex
	changed  sync.Cond
	bytes    int64
	count    int
	released bool
	quiet    chan struct{} // closed when count is 0; created on demand
}

func (a *admission) init(maxBytes int64, maxCount int) {
	a.maxBytes, a.maxCount = maxBytes, maxCount
	a.changed.L = &a.mu
}

// admit waits until the reader may read another request.
func (a *admission) admit() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.released && (a.bytes > a.maxBytes || a.count > a.maxCount) {
		a.changed.Wait()
	}
}

func (a *admission) add(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes += bytes
	a.count++
}

func (a *admission) done(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes -= bytes
	a.count--
	if a.count == 0 && a.quiet != nil {
		close(a.quiet)
		a.quiet = nil
	}
	a.changed.Signal()
}

// idle returns a channel that is closed when every request is answered. The reader must
// have stopped.
func (a *admission) idle() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	quiet := make(chan struct{})
	if a.count == 0 {
		close(quiet)
		return quiet
	}
	a.quiet = quiet
	return quiet
}

// release lets the reader pass from now on.
func (a *admission) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released = true
	a.changed.Signal()
}

// How many requests of one connection each of its pools serves at the same time. Requests
// that need much memory have smaller pools.
const (
	poolSize      = 128
	heavyPoolSize = 16
)

// pool runs functions in order of arrival on a bounded number of goroutines, which exist
// only while there is work. The connection's admission bounds the waiting functions.
type pool struct {
	conn *Conn
	size int

	mu      sync.Mutex
	queue   []func()
	running int  // goroutines
	begins  bool // a goroutine was started and has no function yet
}

func (p *pool) submit(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, f)
	p.growLocked()
}

// growLocked starts a goroutine for the queue, if there may be another. Each goroutine
// starts the next one when it has a function itself. So requests that arrive together
// share few goroutines, and their replies are written together, but a blocked one does
// not hold up the others.
func (p *pool) growLocked() {
	if len(p.queue) == 0 || p.begins || p.running >= p.size {
		return
	}
	p.begins = true
	p.running++
	p.conn.start(func() {
		for f := p.next(true); f != nil; f = p.next(false) {
			f()
		}
	})
}

// next returns the next function for a goroutine, or nil, which ends the goroutine.
func (p *pool) next(first bool) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first {
		p.begins = false
	}
	if len(p.queue) == 0 {
		p.running--
		return nil
	}
	f := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	p.growLocked()
	return f
}

// A reservation of at most maxSmallReply bytes does not wait for larger ones.
const maxSmallReply = 64 << 10

// reservations bounds the memory of a connection's large replies: of those being made, and
// of those that wait for the peer to read. They are granted in order of arrival, in two
// classes: a large one that waits does not hold up small ones.
//
// The holder of a reservation must not wait for another: reserve for both, or release the
// first. Nothing is granted once the context has ended.
type reservations struct {
	ctx          context.Context
	limit        int64 // of each class
	small, large *semaphore.Weighted
}

// reservation is memory for one reply.
type reservation struct {
	class *semaphore.Weighted
	size  int64
}

func newReservations(ctx context.Context, limit int64) *reservations {
	return &reservations{ctx: ctx, limit: limit, small: semaphore.NewWeighted(limit), large: semaphore.NewWeighted(limit)}
}

// class returns the class of a reservation of n bytes, and its size there: the whole class for
// a reply that is larger than the limit.
func (m *reservations) class(n int64) (*semaphore.Weighted, int64) {
	if n <= maxSmallReply {
		return m.small, min(n, m.limit)
	}
	return m.large, min(n, m.limit)
}

// reserve waits for n bytes.
func (m *reservations) reserve(n int64) (*reservation, error) {
	class, size := m.class(n)
	if m.ctx.Err() != nil || class.Acquire(m.ctx, size) != nil {
		return nil, ErrPeerClosed
	}
	return &reservation{class, size}, nil
}

// grow changes a reservation to n bytes if that needs no waiting, and reports whether it
// did.
func (m *reservations) grow(r *reservation, n int64) bool {
	class, size := m.class(n)
	more := size
	if class == r.class {
		more -= r.size
	}
	switch {
	case m.ctx.Err() != nil || more > 0 && !class.TryAcquire(more):
		return false
	case class != r.class:
		r.release()
	case more < 0:
		class.Release(-more)
	}
	*r = reservation{class, size}
	return true
}

// shrink reduces the reservation to n bytes, the length of the finished reply.
func (r *reservation) shrink(n int64) {
	if n < r.size {
		r.class.Release(r.size - n)
		r.size = n
	}
}

// release releases the reservation.
func (r *reservation) release() { r.class.Release(r.size) }
