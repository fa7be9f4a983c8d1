package client

import "time"

// Output is acknowledged after every ackEvery bytes that somebody here is done
// with, and after ackDelay at the latest, where the server takes
// acknowledgements (PROTOCOL.md, "process/ack"): it keeps what was not, and
// makes the process wait when that is too much.
const (
	ackEvery = 256 << 10
	ackDelay = 20 * time.Millisecond
)

// consumedLocked says that n bytes of output are done with, of which some were
// in a queue.
func (p *Process) consumedLocked(n, queued int) {
	p.queuedLocked(-queued)
	p.taken += n
	switch {
	case !p.env.acks:
	case p.taken >= ackEvery, p.closed: // before a farewell, which ends a session that has nothing unread
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
	p.taken = 0
	if p.ackTimer != nil {
		p.ackTimer.Stop()
		p.ackTimer = nil
	}
	if seq := p.takenLocked(); seq > p.acked {
		p.acked = seq
		p.env.back.ack(p.ID, seq)
	}
}

// ackAgain acknowledges over a connection that has just become the current one:
// what was acknowledged since its handshake began went to the one before.
func (p *Process) ackAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.env.acks {
		p.acked = 0
		p.ackLocked()
	}
}

// takenLocked is the number up to which everything here is done with.
func (p *Process) takenLocked() uint64 {
	seq := p.last
	for _, q := range p.queue {
		if q != nil {
			seq = min(seq, q.takenLocked())
		}
	}
	return seq
}

// acknowledged returns what is to be acknowledged over a new connection: also
// what was already, which the old one may have taken with it.
func (p *Process) acknowledged() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked = max(p.acked, p.takenLocked())
	return p.acked
}
