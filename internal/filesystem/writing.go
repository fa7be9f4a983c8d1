package filesystem

import (
	"context"
	"sync"
)

// writing serializes the writers of a file. Between the check of the old content and the write
// no other writer may come; and a write goes on when its connection has ended in the middle,
// while the client writes the file again over the next one. A turn is for a file, which may have
// several names, or, for conditional writers, for a name, which may stand for another file after
// each write. A writer takes the turn of its name first, then that of the file, and holds them
// during I/O: a file system that hangs holds up the writers of the same file.
var writing = turns{waiting: map[any]*turn{}}

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
