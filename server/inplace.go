package server

import (
	"context"
	"sync"
)

// FinishWrites waits until no file is half written in place, or returns the context's
// cause. After Shutdown no such write begins, but writes in progress continue. A program
// that exits without waiting for them leaves torn files behind.
func (s *Server) FinishWrites(ctx context.Context) error { return s.inPlace.wait(ctx) }

// unfinished counts the operations that must finish before the program ends. The zero
// value is ready to use.
type unfinished struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0 again
}

// begin counts an operation until done is called.
func (u *unfinished) begin() (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == 0 {
		u.none = make(chan struct{})
	}
	u.n++
	return u.end
}

func (u *unfinished) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 {
		close(u.none)
	}
}

// wait waits until there are none, or returns the context's cause.
func (u *unfinished) wait(ctx context.Context) error {
	u.mu.Lock()
	n, none := u.n, u.none
	u.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
