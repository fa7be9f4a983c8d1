package client

import "time"

// Where the server supports acknowledgements (PROTOCOL.md, "Acknowledging"), the client
// acknowledges output after every ackEvery bytes that its readers have consumed, and
// after ackDelay at the latest. The server keeps unacknowledged output, and blocks the
// process when there is too much.
const (
	ackEvery = 256 << 10
	ackDelay = 20 * time.Millisecond
)

// consumedLocked records that n bytes of output are consumed, some of which were in a
// queue.
func (p *Process) consumedLocked(n, queued int) {
	p.addQueuedLocked(-queued)
	p.unacked += n
	switch {
	case !p.env.acks:
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
	seq := p.consumedSeqLocked()
	if seq > p.acked {
		p.acked = seq
		p.env.link.ack(p.ID, seq)
	}
	if p.attached && p.closed && seq == p.last {
		p.env.noteRead(p.ID)
	}
}

// ackAgain acknowledges over a connection that has just become current: acknowledgements
// since its handshake began went to the previous one.
func (p *Process) ackAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.env.acks {
		p.acked = 0
		p.ackLocked()
	}
}

// consumedSeqLocked returns the number up to which all readers have consumed the events.
func (p *Process) consumedSeqLocked() uint64 {
	seq := p.last
	for _, q := range p.queue {
		if q != nil {
			seq = min(seq, q.consumedSeqLocked())
		}
	}
	for _, c := range p.cursors {
		seq = min(seq, c.next-1)
	}
	return seq
}

// acknowledged returns the number to acknowledge over a new connection. It includes
// numbers that were acknowledged before, because the old connection may have lost them.
func (p *Process) acknowledged() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked = max(p.acked, p.consumedSeqLocked())
	return p.acked
}
