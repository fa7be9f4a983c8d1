package session

import (
	"execserver/process"
	"execserver/protocol"
)

// Peer is what a session needs from the connection that is attached to it.
type Peer interface {
	// Wake says that the outbox has something new. It must not block.
	Wake()
	// WantAck says that a process waits until what it has sent is
	// acknowledged. It must not block.
	WantAck()
	// Probe asks for a sign of life and reports whether one came in time.
	Probe() bool
	// TakenOver ends the connection because another one has resumed its
	// session.
	TakenOver()
}

// Outbox passes the events of a session on to one connection, process by
// process in turns. It implements the source of events that a connection's
// writer asks whenever it is free: nothing is encoded before it can be sent.
type Outbox struct {
	session *Session
	peer    Peer
	resumed bool

	// guarded by session.mu
	queue   []*entry // processes with something to send, in turns
	unacked []sentEvent
}

// sentEvent remembers up to which offset of the connection an event went.
type sentEvent struct {
	entry  *entry
	seq    uint64
	offset uint64
}

// AppendEvent appends the next event to frame; sent is how many bytes the
// connection has sent before. Called by the connection's writer alone.
func (o *Outbox) AppendEvent(frame []byte, sent uint64) ([]byte, bool) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.out == o && len(o.queue) > 0 {
		e := o.queue[0]
		o.queue[0] = nil
		o.queue = o.queue[1:]
		event, ok := e.proc.Log.Next(e.cursor)
		if !ok {
			e.ready = false
			continue
		}
		e.cursor = event.Seq
		o.queue = append(o.queue, e)
		// Encoding takes longer than anybody should hold the session's lock,
		// and the event is immutable.
		s.mu.Unlock()
		frame = appendEvent(frame, e.id, event)
		s.mu.Lock()
		o.unacked = append(o.unacked, sentEvent{e, event.Seq, sent + uint64(len(frame))})
		return frame, true
	}
	return frame, false
}

// Acknowledged says that the peer has everything up to the offset. What a
// connection says after it has lost the session does not count.
func (o *Outbox) Acknowledged(offset uint64) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != o {
		return
	}
	n := 0
	for ; n < len(o.unacked) && o.unacked[n].offset <= offset; n++ {
		o.unacked[n].entry.proc.Log.Ack(o.unacked[n].seq)
		o.unacked[n].entry = nil
	}
	o.unacked = o.unacked[n:]
}

// attachLocked makes peer the connection of the session. Events that an earlier
// connection may not have delivered are sent again: clients know events by
// their numbers.
func (s *Session) attachLocked(peer Peer, resumed bool) *Outbox {
	s.out = &Outbox{session: s, peer: peer, resumed: resumed}
	for _, e := range s.entries {
		e.ready = false
		e.reads = 0
		if e.proc != nil {
			e.cursor = e.proc.Log.Acked()
			e.proc.Log.SetEvict(false)
			s.readyLocked(e)
		}
	}
	return s.out
}

// detachLocked lets the session go on without a connection.
func (s *Session) detachLocked() {
	s.out = nil
	for _, e := range s.entries {
		if e.proc != nil {
			e.proc.Log.SetEvict(s.opts.EvictDetached)
		}
	}
}

func appendEvent(frame []byte, id string, event process.Event) []byte {
	switch event.Kind {
	case process.Output:
		return protocol.AppendOutput(frame, id, event.Output)
	case process.Exited:
		return protocol.AppendExited(frame, id, event.Seq, event.ExitCode, false)
	default:
		return protocol.AppendClosed(frame, id, event.Seq)
	}
}
