package quota

import (
	"container/list"
	"context"
	"sync"
)

// Semaphore has slots for which principals wait. It serves them in the order of their arrival,
// except those of a principal that has its quota. All methods may be called concurrently.
type Semaphore struct {
	quota *Quota

	mu      sync.Mutex
	waiting list.List // of *waiter
}

type waiter struct {
	principal string
	granted   chan struct{} // closed when the waiter has a slot
}

// NewSemaphore returns a Semaphore of so many slots.
func NewSemaphore(slots int) *Semaphore { return &Semaphore{quota: New(slots)} }

// Acquire waits until the principal may have one more slot, and takes it. It returns the
// cause of ctx if that ends first.
func (s *Semaphore) Acquire(ctx context.Context, principal string) error {
	w := &waiter{principal, make(chan struct{})}
	s.mu.Lock()
	place := s.waiting.PushBack(w)
	s.grantLocked()
	s.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // a moment ago
		return nil
	default:
	}
	s.waiting.Remove(place)
	return context.Cause(ctx)
}

// Check returns why the principal would wait for a slot now, or nil.
func (s *Semaphore) Check(principal string) *Error { return s.quota.Check(principal) }

// Release returns a slot of a principal.
func (s *Semaphore) Release(principal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota.Release(principal)
	s.grantLocked()
}

// grantLocked grants slots to waiters that may have one.
func (s *Semaphore) grantLocked() {
	for place := s.waiting.Front(); place != nil; {
		w, next := place.Value.(*waiter), place.Next()
		switch err := s.quota.Take(w.principal); {
		case err == nil:
			s.waiting.Remove(place)
			close(w.granted)
		case !err.Principal:
			return
		}
		place = next
	}
}
