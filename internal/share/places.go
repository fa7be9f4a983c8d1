package share

import (
	"container/list"
	"context"
	"sync"
)

// Places are things of one kind for which principals wait. Among those who may have one,
// the first to come gets the next. All methods may be called concurrently.
type Places struct {
	pool *Pool

	mu      sync.Mutex
	waiting list.List // of *waiter, in order of arrival
}

// waiter is somebody who waits for a place.
type waiter struct {
	principal string
	granted   chan struct{} // closed when it has a place
}

// NewPlaces returns so many Places.
func NewPlaces(limit int) *Places { return &Places{pool: NewPool(limit)} }

// Take waits until the principal may have one more place, and has it then. It returns the
// cause of ctx if that ends first.
func (p *Places) Take(ctx context.Context, principal string) error {
	w := &waiter{principal, make(chan struct{})}
	p.mu.Lock()
	turn := p.waiting.PushBack(w)
	p.grantLocked()
	p.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.granted: // a moment ago
		return nil
	default:
	}
	p.waiting.Remove(turn)
	return context.Cause(ctx)
}

// Check returns why the principal would wait for a place now, or nil.
func (p *Places) Check(principal string) *Error { return p.pool.Check(principal) }

// Give gives a place of a principal back.
func (p *Places) Give(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.Give(principal)
	p.grantLocked()
}

// grantLocked gives places to those who wait and may have one.
func (p *Places) grantLocked() {
	for turn := p.waiting.Front(); turn != nil; {
		w, next := turn.Value.(*waiter), turn.Next()
		if p.pool.Take(w.principal) == nil {
			p.waiting.Remove(turn)
			close(w.granted)
		}
		turn = next
	}
}
