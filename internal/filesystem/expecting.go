package filesystem

import (
	"context"
	"sync"
)

// expecting serializes conditional writers: between the check of the old content and the
// write, no other conditional writer may come. A turn is for a name, which may stand for
// another file after each write, or for a file, which may have several names. A writer
// takes the turn of its name first, then that of the file. Only conditional writers hold
// turns, so they may hold them during I/O.
var expecting = turns{waiting: map[any]*turn{}}

type turn struct {
	busy  chan struct{} // holds one element while a writer has the turn
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
