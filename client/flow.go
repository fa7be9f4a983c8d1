package client

import (
	"sync"
	"time"
)

// How much output the client holds for slow readers. A server that supports acknowledgements
// keeps unacknowledged output and blocks the process: beyond maxRetained for a process
// the client drops output and reads it again later. Any other server forgets what it has
// sent, and blocks only if the client does not read. With maxReceived in all, the
// client reads only what it needs for the replies to calls, and with maxReceivedCalling
// nothing.
const (
	maxRetained        = 64 << 20
	maxReceived        = 16 << 20
	maxReceivedCalling = 64 << 20
)

// Where the server supports acknowledgements (EXTENSIONS.md, "processAck"), the client
// acknowledges output after every ackEvery bytes that its readers have consumed, and
// after ackDelay at the latest. The server keeps unacknowledged output, and blocks the
// process when there is too much.
const (
	ackEvery = 256 << 10
	ackDelay = 20 * time.Millisecond
)

// receiveLimit bounds the output that an Environment holds for its readers if the server
// does not support acknowledgements.
type receiveLimit struct {
	mu    sync.Mutex
	bytes int
	ended bool          // the Environment has ended: read everything
	space chan struct{} // closed when bytes falls to level; nil without a waiter
	level int
}

// add counts n more bytes, or fewer.
func (r *receiveLimit) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes += n
	if r.space != nil && r.bytes <= r.level {
		close(r.space)
		r.space = nil
	}
}

// wait implements rpc.Options.Pause.
func (r *receiveLimit) wait(calling bool) (space <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := maxReceived
	if calling {
		limit = maxReceivedCalling
	}
	if r.bytes <= limit || r.ended {
		return nil
	}
	if r.space == nil {
		r.space, r.level = make(chan struct{}), 0
	}
	r.level = max(r.level, limit/2) // if the readers of two connections wait, the earlier connection is about to end
	return r.space
}

// lift lets the reader read everything from now on.
func (r *receiveLimit) lift() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.space != nil {
		close(r.space)
		r.space = nil
	}
}

// deliverLocked records that the log holds one more event for a retaining cursor.
func (p *Process) deliverLocked(c *cursor, e Event) {
	readsOn := p.readsOnLocked()
	switch {
	case readsOn && c.pipe && p.log.retained > maxRetained:
		p.abandonLocked(c)
		return
	case readsOn && p.log.retained > 2*maxRetained:
		p.failLocked(errFlood) // it no longer waits for readers
		return
	}
	p.recountLocked()
	if c.pipe && p.ending {
		p.consumedLocked(len(e.Data))
	}
	c.ready.Signal()
}

// recountLocked updates what the process counts toward env.received, and fetches what was dropped
// if there is space again. An ended process counts nothing, because little follows.
func (p *Process) recountLocked() {
	counted := p.log.retained
	if p.env.conns.acks || p.readsOnLocked() || p.overLocked() {
		counted = 0
	}
	if counted != p.counted {
		p.env.received.add(counted - p.counted)
		p.counted = counted
	}
	if p.behind && (p.ending || p.log.retained <= maxRetained/2) {
		p.behind = false
		p.fillLocked()
	}
}

// readsOnLocked reports whether the client reads the rest of the output without waiting for
// readers, because the process has ended or is being killed. Output that a Writer receives
// can still be waited for while it is being killed.
func (p *Process) readsOnLocked() bool {
	return p.ending || p.killing && !p.env.conns.acks && p.piped
}

// fullLocked reports whether output must be dropped and read again when there is space.
func (p *Process) fullLocked() bool {
	return p.env.conns.acks && !p.ending && p.log.retained > maxRetained
}

// consumedLocked records that n more bytes of output are consumed.
func (p *Process) consumedLocked(n int) {
	p.unacked += n
	switch {
	case !p.env.conns.acks:
	case p.unacked >= ackEvery, p.closed:
		// The server keeps the session of a client that goes while events are unacknowledged,
		// so closed must not wait.
		p.ackLocked()
	case p.ackTimer == nil:
		p.ackTimer = time.AfterFunc(ackDelay, p.ack)
	}
}

func (p *Process) ack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ackLocked()
}

func (p *Process) ackLocked() {
	p.unacked = 0
	if p.ackTimer != nil {
		p.ackTimer.Stop()
		p.ackTimer = nil
	}
	seq := p.log.consumed(p.ending)
	if seq > p.acked {
		p.acked = seq
		p.env.remote.ack(p.ID, seq)
	}
	if p.closed && seq == p.log.last {
		p.env.forget(p)
		if p.attached {
			p.env.noteRead(p.ID)
		}
	}
}

// ackAgain acknowledges over a connection that has just become current: acknowledgements
// since its handshake began went to the previous one.
func (p *Process) ackAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.env.conns.acks {
		p.acked = 0
		p.ackLocked()
	}
}

// acknowledged returns the number to acknowledge over a new connection. It includes
// numbers that were acknowledged before, because the old connection may have lost them.
func (p *Process) acknowledged() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked = max(p.acked, p.log.consumed(p.ending))
	return p.acked
}
