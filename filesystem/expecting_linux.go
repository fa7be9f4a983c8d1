package filesystem

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// expecting serialises the writers that check the old content first, file by
// file: between the check and the write no other of them may come. It is held
// during I/O for that reason, by nobody else.
var expecting = turns{waiting: map[turnKey]*turn{}}

type turnKey struct {
	dev, ino uint64 // of the directory
	name     string
}

type turn struct {
	busy  chan struct{} // holds one element while someone is at it
	users int
}

type turns struct {
	mu      sync.Mutex // guards waiting and users
	waiting map[turnKey]*turn
}

func (t *turns) lock(ctx context.Context, target place) (unlock func(), err error) {
	var st unix.Stat_t
	if target.dir >= 0 {
		if err := sys.Fstat(target.dir, &st); err != nil {
			return nil, pathError("stat", target.path, err)
		}
	}
	key := turnKey{uint64(st.Dev), st.Ino, target.name}
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
