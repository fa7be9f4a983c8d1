package session

import (
	"execserver/internal/output"
	"execserver/protocol"
)

// Peer is the connection of a client, as its session needs it. The server implements it.
type Peer interface {
	// Name returns the name that the client gave itself.
	Name() string
	// Capabilities returns the capabilities that the client requested in initialize.
	Capabilities() protocol.ClientCapabilities
	// Credentials returns the credentials of the client.
	Credentials() Credentials
	// Puller returns what pulls the events from the outbox.
	Puller() Puller
	// Probe asks for a sign of life and reports whether one came in time.
	Probe() bool
	// TakenOver ends the connection because another one owns its session now: one that
	// observed it and took it over, or one that resumed it.
	TakenOver(sessionID string, byObserver bool)
	// Disconnect ends the connection, which has lost its session, for the given reason.
	Disconnect(reason string)
}

// Puller calls an Outbox for events whenever it is free to send one. It is the rpc.Conn of the
// connection. Its methods must not block.
type Puller interface {
	// Wake notifies it of a new event. From there on its writer pulls: see docs/design/events.md.
	Wake()
	// WantAck requests an acknowledgement of the events sent so far, because a process
	// waits for it or has closed.
	WantAck()
}

// Credentials identify the owner of a session.
type Credentials struct {
	Principal string      // the same for all connections of a client
	QuotaKey  string      // of the principal in package quota
	Rights    string      // differs when the rights of the principal have changed
	Valid     func() bool // reports whether they have not been revoked; nil if they never are
}

// revoked reports whether the credentials have been revoked.
func (c Credentials) revoked() bool { return c.Valid != nil && !c.Valid() }

var errRevoked = &protocol.Error{
	Code: protocol.CodeInvalidRequest, Message: "the credentials of this connection have been revoked or changed",
}

// Outbox passes the events of a session to one connection, process by process in turns.
// It is the source that the connection's writer calls whenever it is free, so nothing is
// encoded before it can be sent.
//
// The owner of the session has one, and so has each observer. Each has its own position
// in every process's log, so none waits for another.
type Outbox struct {
	session      *Session
	peer         Peer
	puller       Puller // of peer
	capabilities protocol.ClientCapabilities
	resumed      bool // the session has had another connection before
	tellsDropped bool // report evicted output; released clients would not understand that

	// guarded by session.mu
	views    map[*sessionProcess]*view
	queue    []*view // those with something to send, in turns
	failures failures
	failed   bool // the previous event was a failure

	// The events sent to the owner that its transport has not acknowledged: the number of
	// the last event of each process, since the last ping and before each ping.
	sent  map[*sessionProcess]uint64
	pings []ping
}

// view is the position of one connection in the events of one process.
type view struct {
	process *sessionProcess
	at      output.Position // events before it were passed to the writer
	queued  bool
	started bool // process/started must be sent
	reads   int  // number of process/read calls
}

// ping is a ping whose pong acknowledges the events between it and the previous ping.
type ping struct {
	number uint64
	sent   map[*sessionProcess]uint64
}

func newOutbox(s *Session, peer Peer) *Outbox {
	capabilities := peer.Capabilities()
	return &Outbox{
		session: s, peer: peer, puller: peer.Puller(), capabilities: capabilities, tellsDropped: capabilities.ProcessEvents,
		views: make(map[*sessionProcess]*view), sent: make(map[*sessionProcess]uint64),
	}
}

// ownsLocked reports whether the connection is the session's owner, and not an observer
// or one that has lost the session.
func (o *Outbox) ownsLocked() bool { return o.session.owner == o }

func (o *Outbox) attachedLocked() bool {
	return o.ownsLocked() || o.session.observers[o]
}

// Changed implements process.Listener: the process has new events.
func (sp *sessionProcess) Changed() {
	s := sp.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp.announced {
		sp.queueLocked()
		sp.noteClosedLocked()
	}
}

// Blocked implements process.Listener: the process waits for free retention. Events must be
// sent before they can be acknowledged, so a process that is not announced has to wait until
// it is.
func (sp *sessionProcess) Blocked() {
	s := sp.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !sp.announced:
		sp.wantsAck = true
	case s.owner != nil && !s.owner.capabilities.ProcessAck:
		s.owner.puller.WantAck()
	}
}

// queueLocked queues an announced process for every connection and wakes their
// writers.
func (sp *sessionProcess) queueLocked() {
	sp.session.outboxesLocked(func(o *Outbox) { o.queueLocked(sp) })
}

// queueLocked queues a process that has something to send.
func (o *Outbox) queueLocked(sp *sessionProcess) {
	if v := o.viewLocked(sp); !v.queued {
		v.queued = true
		o.queue = append(o.queue, v)
		o.puller.Wake()
	}
}

// AppendEvent appends the next event to msg. Only the connection's writer calls it.
func (o *Outbox) AppendEvent(msg []byte) ([]byte, bool) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.attachedLocked() {
		return msg, false
	}
	if !o.failed { // failures and processes take turns
		if msg, o.failed = o.failures.appendNext(msg); o.failed {
			return msg, true
		}
	}
	o.failed = false
	for len(o.queue) > 0 {
		v := o.turnLocked()
		if v.started {
			v.started = false
			o.queue = append(o.queue, v)
			about := v.process.proc.Describe()
			return protocol.AppendStarted(msg, v.process.id, about.Pid, about.Started.UnixMilli()), true
		}
		log := v.process.proc.Log
		event, ok := log.Borrow(v.at.Seq)
		if !ok {
			v.queued = false
			continue
		}
		o.queue = append(o.queue, v)
		if event.Kind == output.Closed {
			// This may run before Changed. A client that learns of the end may start another process.
			v.process.noteClosedLocked()
		}
		// Only what was evicted is missing between two events.
		if dropped := event.Offset - v.at.Offset; event.Seq > v.at.Seq+1 && o.tellsDropped {
			v.at = output.Position{Seq: event.Seq - 1, Offset: event.Offset}
			log.Return(event)
			return protocol.AppendDropped(msg, v.process.id, event.Seq, dropped), true
		}
		v.at = output.Position{Seq: event.Seq, Offset: event.Offset + uint64(len(event.Output.Data))}
		// Decide this before unlocking. An observer that becomes the owner meanwhile may lack
		// earlier events, so the fact that it has this one must not acknowledge them.
		owned := o.ownsLocked() && !o.capabilities.ProcessAck
		// Encoding takes too long to hold the session's lock, and the event is immutable.
		s.mu.Unlock()
		msg = o.appendEvent(msg, v.process.id, event)
		log.Return(event)
		if event.Waiting || event.Kind == output.Closed {
			// Ask again: the acknowledgement requested when the process began to wait may not
			// reach as far as this event. After closed, ask too: until it is acknowledged, a
			// detached session is not idle.
			o.puller.WantAck()
		}
		s.mu.Lock()
		if owned && o.views[v.process] == v { // it may have been forgotten since
			o.sent[v.process] = event.Seq
		}
		return msg, true
	}
	return o.failures.appendNext(msg)
}

// turnLocked removes the first process from the queue.
func (o *Outbox) turnLocked() *view {
	v := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	return v
}

func (o *Outbox) appendEvent(msg []byte, id string, event output.Event) []byte {
	switch event.Kind {
	case output.Output:
		if o.capabilities.BinaryFrames {
			return protocol.AppendBinaryOutput(msg, id, event.Output)
		}
		return protocol.AppendOutput(msg, id, event.Output)
	case output.Exited:
		return protocol.AppendExited(msg, id, event.Seq, event.Exit)
	default:
		return protocol.AppendClosed(msg, id, event.Seq)
	}
}

// Pinged implements rpc.Acknowledger: ping n follows the events so far.
func (o *Outbox) Pinged(n uint64) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(o.sent) > 0 {
		o.pings = append(o.pings, ping{n, o.sent})
		o.sent = make(map[*sessionProcess]uint64)
	}
}

// Acknowledged implements rpc.Acknowledger: the peer has received everything before ping n.
// It ignores an observer, a connection that has lost the session, and the transport of a
// client that sends process/ack.
func (o *Outbox) Acknowledged(n uint64) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(o.pings) > 0 && o.pings[0].number <= n {
		for sp, seq := range o.pings[0].sent {
			if o.ownsLocked() {
				sp.proc.Log.Ack(seq)
			}
		}
		o.pings[0].sent = nil
		o.pings = o.pings[1:]
	}
}

// Ack serves process/ack. It does nothing for observers and for unknown processes.
func (o *Outbox) Ack(p protocol.AckParams) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.processes[p.ProcessID]
	if !o.ownsLocked() || sp == nil || sp.proc == nil {
		return
	}
	// Do not send events again that the client has received over its previous connection.
	if at, v := sp.proc.Log.Ack(p.Seq), o.viewLocked(sp); at.Seq > v.at.Seq {
		v.at = at
	}
}

// hasSent reports whether the outbox has sent all events of a process to a client that
// does not send process/ack.
func (o *Outbox) hasSent(sp *sessionProcess) bool {
	if o == nil || o.capabilities.ProcessAck {
		return false
	}
	v := o.views[sp]
	return v != nil && v.at.Seq == sp.proc.Log.LastSeq()
}

// viewLocked returns the connection's view of a process.
func (o *Outbox) viewLocked(sp *sessionProcess) *view {
	v := o.views[sp]
	if v == nil {
		v = &view{process: sp}
		o.views[sp] = v
	}
	return v
}

// forgetLocked forgets a process, so that a peer that acknowledges nothing costs nothing.
func (o *Outbox) forgetLocked(sp *sessionProcess) {
	delete(o.views, sp)
	delete(o.sent, sp)
	for _, p := range o.pings {
		delete(p.sent, sp)
	}
}

// outboxesLocked calls f with the outbox of every attached connection.
func (s *Session) outboxesLocked(f func(*Outbox)) {
	if s.owner != nil {
		f(s.owner)
	}
	for o := range s.observers {
		f(o)
	}
}

// attachLocked makes peer the owner's connection. It sends the events again that an
// earlier connection may not have delivered; clients recognize events by their numbers.
func (s *Session) attachLocked(peer Peer, resumed bool) *Outbox {
	o := newOutbox(s, peer)
	o.resumed = resumed
	s.ownLocked(o)
	for _, sp := range s.processes {
		if sp.proc == nil {
			continue
		}
		o.viewLocked(sp).at = sp.proc.Log.Acked()
		if sp.announced {
			o.queueLocked(sp)
		}
	}
	return o
}

// ownLocked makes o the owner's outbox.
func (s *Session) ownLocked(o *Outbox) {
	s.owner, s.client = o, o.peer.Name()
	s.acks = o.capabilities.ProcessAck
	s.setEvictLocked()
	if o.resumed && !s.acks {
		// Processes that wait have requested an acknowledgement from the previous owner only.
		o.puller.WantAck()
	}
}

// detachLocked removes the owner's connection from the session.
func (s *Session) detachLocked() {
	s.owner = nil
	s.setEvictLocked()
}

// evictLocked reports whether output that the owner has not received may be evicted. That of
// a client that sends process/ack may not, unless its lease allows it.
func (s *Session) evictLocked() bool {
	if s.detachedOutput != nil {
		return s.owner == nil && *s.detachedOutput == protocol.EvictOutput
	}
	return s.owner == nil && s.opts.EvictDetached && !s.acks
}

func (s *Session) setEvictLocked() {
	for _, sp := range s.processes {
		if sp.proc != nil {
			sp.proc.Log.SetEvict(s.evictLocked())
		}
	}
}

// maxFailures is how many process/failed may wait for one connection.
const maxFailures = 256

// failures are the latest process/failed that wait for one connection.
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

// appendNext appends the notification of the oldest failure, with the number of dropped
// ones before it.
func (f *failures) appendNext(msg []byte) (_ []byte, ok bool) {
	if len(f.list) == 0 {
		return msg, false
	}
	msg = protocol.AppendFailed(msg, f.list[0].id, f.list[0].err, f.omitted)
	f.list[0] = failure{}
	f.list, f.omitted = f.list[1:], 0
	return msg, true
}
