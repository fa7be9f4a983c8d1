package client

import "sync"

// How much output may wait here for slow readers. A server that supports acknowledgements
// keeps unacknowledged output and blocks the process: beyond maxQueuedAcked for a process
// the client drops output and reads it again later. Any other server forgets what it has
// sent, and blocks only if the client does not read. With maxQueued waiting in all, the
// client reads only what it needs for the replies to calls, and with maxQueuedCalling
// nothing.
const (
	maxQueuedAcked   = 64 << 20
	maxQueued        = 16 << 20
	maxQueuedCalling = 64 << 20
)

// eventBytes is about what an event in a queue takes beside its data: much output in tiny
// pieces counts as what it is.
const eventBytes = 128

// intake counts the output that waits in an Environment whose server does not support
// acknowledgements.
type intake struct {
	mu    sync.Mutex
	bytes int
	ended bool          // the Environment has ended: read everything
	room  chan struct{} // closed when bytes falls to level; nil if nobody waits
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
	i.level = max(i.level, limit/2) // of two connections' readers the earlier one is about to end
	return i.room
}

// open lets the reader read everything from now on.
func (i *intake) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	if i.room != nil {
		close(i.room)
		i.room = nil
	}
}

// addQueuedLocked records n more or fewer bytes in the process's queues.
func (p *Process) addQueuedLocked(n int) {
	p.queued += n
	p.recountLocked()
}

// recountLocked updates what the process counts in the intake, and fills if there is room
// again. The rest of an ended process does not count, because little follows.
func (p *Process) recountLocked() {
	counted := p.queued
	if p.env.acks || p.flowsLocked() || p.overLocked() {
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

// flowsLocked reports whether the client reads the rest of the output without waiting for
// readers, because the process has ended or is being killed. Output that a Writer receives
// can still be waited for while it is being killed.
func (p *Process) flowsLocked() bool {
	return p.ending || p.killing && !p.env.acks && p.hasPipe()
}

// hasPipe reports whether output goes to a pipe, which the caller may not read. That is
// settled before the process starts.
func (p *Process) hasPipe() bool {
	for _, q := range p.queue {
		if q != nil && q.pipe {
			return true
		}
	}
	return false
}

// fullLocked reports whether output must be dropped and read again when there is room.
func (p *Process) fullLocked() bool {
	return p.env.acks && !p.ending && p.queued > maxQueuedAcked
}
