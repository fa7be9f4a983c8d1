package session

import (
	"execserver/process"
	"execserver/protocol"
)

// Peer is what a session needs from a connection that is attached to it.
type Peer interface {
	// Asks is what the client asked for in initialize.
	Asks() protocol.ClientCapabilities
	// Credentials are what the other end has come in with.
	Credentials() Credentials
	// Wake says that the outbox has something new. It must not block.
	Wake()
	// WantAck says that what was sent is to be acknowledged soon: a process waits
	// for that, or has closed. It must not block.
	WantAck()
	// Probe asks for a sign of life and reports whether one came in time.
	Probe() bool
	// TakenOver ends the connection because another one owns its session now:
	// one that observed it and took it over, or one that resumed it.
	TakenOver(sessionID string, byObserver bool)
	// Left ends a connection that has lost its session, for the reason given.
	Left(reason string)
}

// Credentials say whose a session is, and for how long.
type Credentials struct {
	Principal string      // the same whenever the same one comes back
	Rights    string      // the same for as long as nobody has changed them
	Stand     func() bool // whether they have not been revoked; nil: they never are
}

// Outbox passes the events of a session on to one connection, process by
// process in turns. It implements the source of events that a connection's
// writer asks whenever it is free: nothing is encoded before it can be sent.
//
// There is one for the owner of the session and one for each observer. Each has
// its own place in every process's log, so that none waits for another.
type Outbox struct {
	session *Session
	peer    Peer
	asks    protocol.ClientCapabilities
	resumed bool // the session has had another connection before
	drops   bool // what was evicted is told; released clients would not understand

	// guarded by session.mu
	views    map[*entry]*view
	queue    []*view // those with something to send, in turns
	failures failures
	failed   bool // the event before was a failure
	unacked  []sentEvent
}

// view is one process as one connection has seen it.
type view struct {
	entry   *entry
	at      process.Position // everything before was passed to the writer
	queued  bool
	started bool // process/started is to be sent
	reads   int  // process/read calls
}

// sentEvent remembers up to which offset of the connection an event went.
type sentEvent struct {
	entry  *entry
	seq    uint64
	offset uint64
}

func newOutbox(s *Session, peer Peer) *Outbox {
	asks := peer.Asks()
	return &Outbox{session: s, peer: peer, asks: asks, drops: asks.ProcessEvents, views: make(map[*entry]*view)}
}

// ownsLocked reports whether the connection is the session's owner, and not an
// observer or one that has lost the session.
func (o *Outbox) ownsLocked() bool { return o.session.out == o }

func (o *Outbox) attachedLocked() bool {
	return o.ownsLocked() || o.session.observers[o]
}

// AppendEvent appends the next event to frame; sent is how many bytes of events the
// connection has sent before. Called by the connection's writer alone.
func (o *Outbox) AppendEvent(frame []byte, sent uint64) ([]byte, bool) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.attachedLocked() {
		return frame, false
	}
	if !o.failed { // they take turns with the processes
		if frame, o.failed = o.failures.appendNext(frame); o.failed {
			return frame, true
		}
	}
	o.failed = false
	for len(o.queue) > 0 {
		v := o.turnLocked()
		if v.started {
			v.started = false
			o.queue = append(o.queue, v)
			about := v.entry.proc.Describe()
			return protocol.AppendStarted(frame, v.entry.id, about.Pid, about.Started.UnixMilli()), true
		}
		log := v.entry.proc.Log
		event, ok := log.Borrow(v.at.Seq)
		if !ok {
			v.queued = false
			continue
		}
		o.queue = append(o.queue, v)
		if dropped := event.Offset - v.at.Offset; event.Seq > v.at.Seq+1 && o.drops {
			v.at = process.Position{Seq: event.Seq - 1, Offset: event.Offset}
			log.Return(event)
			return protocol.AppendDropped(frame, v.entry.id, event.Seq, dropped), true
		}
		v.at = process.Position{Seq: event.Seq, Offset: event.Offset + uint64(len(event.Output.Data))}
		// An observer that takes over meanwhile is sent everything again: that
		// it had this event does not mean that it has those before.
		owned := o.ownsLocked() && !o.asks.ProcessAck
		// Encoding takes longer than anybody should hold the session's lock,
		// and the event is immutable.
		s.mu.Unlock()
		frame = appendEvent(frame, v.entry.id, event)
		log.Return(event)
		if event.Waiting || event.Kind == process.Closed {
			// Asking when the wait began may have been too early: what was
			// acknowledged then need not be of this process. That a process has
			// closed is asked for so that a session whose client has vanished is
			// known to hold nothing that the client has not seen.
			o.peer.WantAck()
		}
		s.mu.Lock()
		if owned {
			o.unacked = append(o.unacked, sentEvent{v.entry, event.Seq, sent + uint64(len(frame))})
		}
		return frame, true
	}
	return o.failures.appendNext(frame)
}

// Next returns the next event and the process it is of, for a peer in the same
// program, which asks for nothing but to acknowledge by itself. Called by one
// goroutine alone.
func (o *Outbox) Next() (processID string, event process.Event, ok bool) {
	o.session.mu.Lock()
	defer o.session.mu.Unlock()
	for o.attachedLocked() && len(o.queue) > 0 {
		v := o.turnLocked()
		event, ok := v.entry.proc.Log.Next(v.at.Seq)
		if !ok {
			v.queued = false
			continue
		}
		o.queue = append(o.queue, v)
		v.at = process.Position{Seq: event.Seq, Offset: event.Offset + uint64(len(event.Output.Data))}
		return v.entry.id, event, true
	}
	return "", process.Event{}, false
}

// turnLocked takes the process whose turn it is from the queue.
func (o *Outbox) turnLocked() *view {
	v := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	return v
}

// Acknowledged says that the peer has everything up to the offset. What an
// observer says does not count, nor what a connection says after it has lost
// the session, nor what the transport says of a client that does it itself.
func (o *Outbox) Acknowledged(offset uint64) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.ownsLocked() {
		return
	}
	n := 0
	for ; n < len(o.unacked) && o.unacked[n].offset <= offset; n++ {
		o.unacked[n].entry.proc.Log.Ack(o.unacked[n].seq)
		o.unacked[n].entry = nil
	}
	o.unacked = o.unacked[n:]
}

// Ack serves process/ack. It does nothing for observers and for processes that
// are not known any more.
func (o *Outbox) Ack(p protocol.Ack) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[p.ProcessID]
	if !o.ownsLocked() || e == nil || e.proc == nil {
		return
	}
	// What a client has from the connection before need not be sent again.
	if at, v := e.proc.Log.Ack(p.Seq), o.viewLocked(e); at.Seq > v.at.Seq {
		v.at = at
	}
}

// viewLocked returns the connection's view of a process.
func (o *Outbox) viewLocked(e *entry) *view {
	v := o.views[e]
	if v == nil {
		v = &view{entry: e}
		o.views[e] = v
	}
	return v
}

// readyLocked queues a process that has something to send.
func (o *Outbox) readyLocked(e *entry) {
	v := o.viewLocked(e)
	if v.queued {
		return
	}
	v.queued = true
	o.queue = append(o.queue, v)
	o.peer.Wake()
}

// outboxesLocked calls f with the outbox of every attached connection.
func (s *Session) outboxesLocked(f func(*Outbox)) {
	if s.out != nil {
		f(s.out)
	}
	for o := range s.observers {
		f(o)
	}
}

// attachLocked makes peer the owner's connection. Events that an earlier one
// may not have delivered are sent again: clients know events by their numbers.
func (s *Session) attachLocked(peer Peer, resumed bool) *Outbox {
	o := newOutbox(s, peer)
	o.resumed = resumed
	s.ownLocked(o)
	for _, e := range s.entries {
		if e.proc == nil {
			continue
		}
		o.viewLocked(e).at = e.proc.Log.Acked()
		if e.announced {
			o.readyLocked(e)
		}
	}
	return o
}

// ownLocked makes o the owner's outbox.
func (s *Session) ownLocked(o *Outbox) {
	s.out = o
	s.acks = o.asks.ProcessAck
	s.setEvictLocked()
	if o.resumed && !s.acks {
		// Processes that wait for room have asked the owner before for it.
		o.peer.WantAck()
	}
}

// detachLocked lets the session go on without an owner's connection.
func (s *Session) detachLocked() {
	s.out = nil
	s.setEvictLocked()
}

// evictLocked says whether output that the owner does not have may be evicted: of
// a client that acknowledges by itself never.
func (s *Session) evictLocked() bool { return s.out == nil && s.opts.EvictDetached && !s.acks }

func (s *Session) setEvictLocked() {
	for _, e := range s.entries {
		if e.proc != nil {
			e.proc.Log.SetEvict(s.evictLocked())
		}
	}
}

func appendEvent(frame []byte, id string, event process.Event) []byte {
	switch event.Kind {
	case process.Output:
		return protocol.AppendOutput(frame, id, event.Output)
	case process.Exited:
		return protocol.AppendExited(frame, id, event.Seq, event.Exit)
	default:
		return protocol.AppendClosed(frame, id, event.Seq)
	}
}

// maxFailures is how many process/failed wait for one connection.
const maxFailures = 256

// failures are the process/failed that wait for one connection, the latest ones.
type failures struct {
	list    []failure
	omitted uint64 // before list
}

type failure struct {
	id  string
	err *protocol.Error
}

func (f *failures) add(id string, err *protocol.Error) {
	if len(f.list) == maxFailures {
		f.list[0] = failure{}
		f.list = f.list[1:]
		f.omitted++
	}
	f.list = append(f.list, failure{id, err})
}

// appendNext appends the notification of the oldest failure, which also says how
// many there were before it that are gone.
func (f *failures) appendNext(frame []byte) (_ []byte, ok bool) {
	if len(f.list) == 0 {
		return frame, false
	}
	frame = protocol.AppendFailed(frame, f.list[0].id, f.list[0].err, f.omitted)
	f.list[0] = failure{}
	f.list, f.omitted = f.list[1:], 0
	return frame, true
}
