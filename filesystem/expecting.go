package filesystem

import (
	"context"
	"sync"
)

// expecting serialises the writers that check the old content first: between the
// check and the write no other of them may come. A turn is for a name, which may
// stand for another file after each write, or for a file, which may have several
// names; a writer takes that of its name first, then that of the file there. It is
// held during I/O for that reason, by nobody else.
var expecting = turns{waiting: map[any]*turn{}}

type turn struct {
	busy  chan struct{} // holds one element while someone is at it
	users int
}

type turns struct {
	mu      sync.Mutex // guards waiting and users
	waiting map[any]*turn
}

// lock waits for the turn of a key.
func (t *turns) lock(ctx context.Context, key any) (unlock func(), err error) {
	t.mu.Lock()
	mine := t.waiting[key]
	if mine == nil {
		mine = &turn{busy: make(chan struct{}, 1)}
		t.waiting[key] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.waiting, key)
		}
	}
	select {
	case mine.busy <- struct{}{}:
		return func() { <-mine.busy; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
