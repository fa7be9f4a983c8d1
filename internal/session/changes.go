package session

import (
	"slices"
	"sync"
)

// Changes keeps the file changes of one connection in their order of arrival
// (PROTOCOL.md, "Order and concurrency"): each begins when the previous one is done. The zero
// value is ready to use. Any goroutine may call its methods.
type Changes struct {
	mu     sync.Mutex
	closed bool
	queue  []*change // in order of arrival; the first has begun
}

// change is one operation that changes files.
type change struct{ begin, drop func() }

// Submit queues a change. It calls begin, which must not block, when it is the change's turn, or
// drop if Close is called before. begin or the caller must call done when the change is over,
// before its turn or after; further calls have no effect.
func (c *Changes) Submit(drop func(), begin func(done func())) (done func()) {
	x := &change{drop: drop}
	done = func() { c.done(x) }
	x.begin = func() { begin(done) }
	c.mu.Lock()
	dropped := c.closed && drop != nil
	if !dropped {
		c.queue = append(c.queue, x)
	}
	first := len(c.queue) == 1 && !dropped
	c.mu.Unlock()
	switch {
	case dropped:
		drop()
	case first:
		x.begin()
	}
	return done
}

// done removes x and begins the next change.
func (c *Changes) done(x *change) {
	c.mu.Lock()
	i := slices.Index(c.queue, x)
	if i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	var next *change
	if i == 0 && len(c.queue) > 0 {
		next = c.queue[0]
	}
	c.mu.Unlock()
	if next != nil {
		next.begin()
	}
}

// Close drops the changes that have not begun, and those that are submitted later, because the
// connection has ended.
func (c *Changes) Close() {
	c.mu.Lock()
	c.closed = true
	var kept, dropped []*change
	for i, x := range c.queue {
		if i == 0 || x.drop == nil {
			kept = append(kept, x)
		} else {
			dropped = append(dropped, x)
		}
	}
	c.queue = kept
	c.mu.Unlock()
	for _, x := range dropped {
		x.drop()
	}
}

// follow makes the changes of c, to which nothing was submitted yet, begin when those of a
// connection before it are done.
func (c *Changes) follow(before *Changes) {
	done := c.Submit(nil, func(func()) {})
	before.Submit(nil, func(over func()) {
		done()
		over()
	})
}

// Own makes the changes of the connection that owns the session now begin when those of the
// connection that owned it before are done. A client repeats a change whose answer it has not
// received; without the order, the first attempt could overwrite what came after the second.
func (s *Session) Own(c *Changes) {
	s.mu.Lock()
	before := s.changes
	s.changes = c
	s.mu.Unlock()
	if before != nil {
		c.follow(before)
	}
}
