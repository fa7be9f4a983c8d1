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
	queue  []*Change // in order of arrival; the first has begun
}

// Change is one operation that changes files. Its functions must not block.
type Change struct {
	Begin func() // called when it is the change's turn
	Drop  func() // called instead if the connection ends before; nil: the change stays
}

// Submit queues a change. The caller must call Done when the change is over, before its turn or
// after.
func (c *Changes) Submit(x *Change) {
	c.mu.Lock()
	dropped := c.closed && x.Drop != nil
	if !dropped {
		c.queue = append(c.queue, x)
	}
	first := !dropped && len(c.queue) == 1
	c.mu.Unlock()
	switch {
	case dropped:
		x.Drop()
	case first:
		x.Begin()
	}
}

// Done removes x and begins the next change. It does nothing if x is not in the queue.
func (c *Changes) Done(x *Change) {
	c.mu.Lock()
	i := slices.Index(c.queue, x)
	if i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	var next *Change
	if i == 0 && len(c.queue) > 0 {
		next = c.queue[0]
	}
	c.mu.Unlock()
	if next != nil {
		next.Begin()
	}
}

// Close drops the changes that have not begun, and those that are submitted later, because the
// connection has ended.
func (c *Changes) Close() {
	c.mu.Lock()
	c.closed = true
	var kept, dropped []*Change
	for i, x := range c.queue {
		if i == 0 || x.Drop == nil {
			kept = append(kept, x)
		} else {
			dropped = append(dropped, x)
		}
	}
	c.queue = kept
	c.mu.Unlock()
	for _, x := range dropped {
		x.Drop()
	}
}

// follow makes the changes that are submitted to c from now on begin when those that were submitted
// to the queue of another connection before are done.
func (c *Changes) follow(before *Changes) {
	wait := &Change{Begin: func() {}}
	c.Submit(wait)
	last := new(Change)
	last.Begin = func() {
		c.Done(wait)
		before.Done(last)
	}
	before.Submit(last)
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
