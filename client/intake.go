package client

import "sync"

// How much output may wait here for slow readers. A server that takes
// acknowledgements keeps the output that is not acknowledged, and makes the
// process wait: beyond maxQueuedAcked for a process the client drops what comes
// and reads it again later. Any other server forgets what it has sent. It can
// only be made to wait by not reading from it: with maxQueued waiting in all, the
// client reads no more than it must to answer calls, and with maxQueuedCalling
// nothing.
const (
	maxQueuedAcked   = 64 << 20
	maxQueued        = 16 << 20
	maxQueuedCalling = 64 << 20
)

// intake counts the output that waits in an Environment whose server takes no
// acknowledgements.
type intake struct {
	mu    sync.Mutex
	bytes int
	ended bool          // the Environment is: everything is read, for what is waited for then
	room  chan struct{} // closed when bytes falls to level; nil when nobody waits
	level int
}

// add counts n more bytes, or fewer.
func (i *intake) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.bytes += n
	if i.room != nil && i.bytes <= i.level {
		close(i.room)
		i.room = nil
	}
}

// hold implements rpc.Options.Hold.
func (i *intake) hold(calling bool) (room <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	limit := maxQueued
	if calling {
		limit = maxQueuedCalling
	}
	if i.bytes <= limit || i.ended {
		return nil
	}
	if i.room == nil {
		i.room, i.level = make(chan struct{}), 0
	}
	i.level = max(i.level, limit/2) // of two connections' readers the one before is about to end
	return i.room
}

// open lets everything be read from now on.
func (i *intake) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	if i.room != nil {
		close(i.room)
		i.room = nil
	}
}

// queuedLocked says that there are n more bytes in the process's queues, or
// fewer. What is left of a process that is over does not count: nothing more
// comes.
func (p *Process) queuedLocked(n int) {
	p.queued += n
	counted := p.queued
	if p.env.acks || p.ending || p.overLocked() {
		counted = 0
	}
	if counted != p.counted {
		p.env.intake.add(counted - p.counted)
		p.counted = counted
	}
	if p.behind && (p.ending || p.queued <= maxQueuedAcked/2) {
		p.behind = false
		p.fillLocked()
	}
}

// fullLocked reports whether output must be left out, to be read again when
// there is room.
func (p *Process) fullLocked() bool {
	return p.env.acks && !p.ending && p.queued > maxQueuedAcked
}
