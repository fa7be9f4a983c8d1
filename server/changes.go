package server

import (
	"slices"
	"sync"
)

// changes keeps the file changes of one connection in their order of arrival
// (PROTOCOL.md, "Order and concurrency"): each begins when the one before is done.
type changes struct {
	mu    sync.Mutex
	queue []*change // in order of arrival; the first is in progress
}

// change is one operation that changes files.
type change struct {
	begin func()
}

// submit queues a change. It calls begin, which must not block, when it is the change's
// turn. The caller must call done when the change is over, before its turn or after.
func (c *changes) submit(begin func(*change)) *change {
	x := new(change)
	x.begin = func() { begin(x) }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, x)
	if len(c.queue) == 1 {
		x.begin()
	}
	return x
}

// done removes x and begins the change that waited for it.
func (c *changes) done(x *change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue[0] != x {
		i := slices.Index(c.queue, x)
		c.queue = slices.Delete(c.queue, i, i+1)
		return
	}
	c.queue[0] = nil
	c.queue = c.queue[1:]
	if len(c.queue) > 0 {
		c.queue[0].begin()
	}
}
