package session

import (
	"execserver/internal/output"
	"execserver/protocol"
)

// Peer is what a session needs from its connection, the server's.
type Peer interface {
	// Name returns the name that the client gave itself.
	Name() string
	// Asks returns what the client asked for in initialize.
	Asks() protocol.ClientCapabilities
	// Credentials returns the credentials of the client.
	Credentials() Credentials
	// Writer returns the connection's writer, which calls the outbox for events.
	Writer() Writer
	// Probe asks for a sign of life and reports whether one came in time.
	Probe() bool
	// TakenOver ends the connection because another one owns its session now: one that
	// observed it and took it over, or one that resumed it.
	TakenOver(sessionID string, byObserver bool)
	// Left ends a connection that has lost its session, for the given reason.
	Left(reason string)
}

// Writer calls an Outbox for events whenever it is free. It is the rpc.Conn of the
// connection. Its methods must not block.
type Writer interface {
	// Wake says that the outbox has a new event.
	Wake()
	// WantAck asks for an acknowledgement of what was sent, because a process waits for
	// it or has closed.
	WantAck()
}

// Credentials say who owns a session, and for how long.
type Credentials struct {
	Principal string      // the same whenever the same client comes back
	QuotaKey  string      // under which package quota counts what the principal has
	Rights    string      // the same as long as nobody has changed them
	Stand     func() bool // reports whether they have not been revoked; nil: they never are
}

// revoked reports whether nothing may be done with the credentials any more.
func (c Credentials) revoked() bool { return c.Stand != nil && !c.Stand() }

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
	session *Session
	peer    Peer
	writer  Writer // of peer
	asks    protocol.ClientCapabilities
	resumed bool // the session has had another connection before
	drops   bool // report evicted output; released clients would not understand that

	// guarded by session.mu
	views    map[*entry]*view
	queue    []*view // those with something to send, in turns
	failures failures
	failed   bool // the previous event was a failure

	// What the owner was sent and its transport has not acknowledged: the number of the
	// last event of each process, since the last ping and before each ping.
	sent  map[*entry]uint64
	pings []ping
}

// view is what one connection has sent of one process.
type view struct {
	entry   *entry
	at      output.Position // events before it were passed to the writer
	queued  bool
	started bool // process/started must be sent
	reads   int  // number of process/read calls
}

// ping is a ping whose pong acknowledges what was sent since the previous one.
type ping struct {
	number uint64
	sent   map[*entry]uint64
}

func newOutbox(s *Session, peer Peer) *Outbox {
	asks := peer.Asks()
	return &Outbox{session: s, peer: peer, writer: peer.Writer(), asks: asks, drops: asks.ProcessEvents, views: make(map[*entry]*view), sent: make(map[*entry]uint64)}
}

// ownsLocked reports whether the connection is the session's owner, and not an observer
// or one that has lost the session.
func (o *Outbox) ownsLocked() bool { return o.session.out == o }

func (o *Outbox) attachedLocked() bool {
	return o.ownsLocked() || o.session.observers[o]
}

// Changed implements process.Listener: the process has new events.
func (e *entry) Changed() {
	s := e.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.announced {
		e.queueLocked()
		s.noteClosedLocked(e)
	}
}

// Blocked implements process.Listener: the process waits for room. What has not been
// sent cannot be acknowledged, so a process that is not announced has to wait for that.
func (e *entry) Blocked() {
	s := e.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !e.announced:
		e.wantsAck = true
	case s.out != nil && !s.out.asks.ProcessAck:
		s.out.writer.WantAck()
	}
}

// queueLocked queues an announced process for every connection and wakes their
// writers.
func (e *entry) queueLocked() {
	e.session.outboxesLocked(func(o *Outbox) { o.queueLocked(e) })
}

// queueLocked queues a process that has something to send.
func (o *Outbox) queueLocked(e *entry) {
	if v := o.viewLocked(e); !v.queued {
		v.queued = true
		o.queue = append(o.queue, v)
		o.writer.Wake()
	}
}

// AppendEvent appends the next event to frame. Only the connection's writer calls it.
func (o *Outbox) AppendEvent(frame []byte) ([]byte, bool) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.attachedLocked() {
		return frame, false
	}
	if !o.failed { // failures and processes take turns
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
		if event.Kind == output.Closed {
			// This may come before Changed. Whoever hears of the end may start another.
			s.noteClosedLocked(v.entry)
		}
		if dropped := event.Offset - v.at.Offset; event.Seq > v.at.Seq+1 && o.drops {
			v.at = output.Position{Seq: event.Seq - 1, Offset: event.Offset}
			log.Return(event)
			return protocol.AppendDropped(frame, v.entry.id, event.Seq, dropped), true
		}
		v.at = output.Position{Seq: event.Seq, Offset: event.Offset + uint64(len(event.Output.Data))}
		// An observer that takes over meanwhile is sent everything again: that it has
		// this event does not mean that it has the earlier ones.
		owned := o.ownsLocked() && !o.asks.ProcessAck
		// Encoding takes too long to hold the session's lock, and the event is immutable.
		s.mu.Unlock()
		frame = o.appendEvent(frame, v.entry.id, event)
		log.Return(event)
		if event.Waiting || event.Kind == output.Closed {
			// Asking when the wait began may have been too early, because that
			// acknowledgement need not concern this process. The server also asks after a
			// process has closed, so that the session of a vanished client is known to
			// hold nothing that the client has not seen.
			o.writer.WantAck()
		}
		s.mu.Lock()
		if owned && o.views[v.entry] == v { // and not forgotten meanwhile
			o.sent[v.entry] = event.Seq
		}
		return frame, true
	}
	return o.failures.appendNext(frame)
}

// turnLocked removes the process whose turn it is from the queue.
func (o *Outbox) turnLocked() *view {
	v := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	return v
}

// Pinged says that ping n follows the events so far.
func (o *Outbox) Pinged(n uint64) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(o.sent) > 0 {
		o.pings = append(o.pings, ping{n, o.sent})
		o.sent = make(map[*entry]uint64)
	}
}

// Acknowledged says that the peer has received everything before ping n. It ignores an
// observer, a connection that has lost the session, and the transport of a client that
// acknowledges by itself.
func (o *Outbox) Acknowledged(n uint64) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(o.pings) > 0 && o.pings[0].number <= n {
		for e, seq := range o.pings[0].sent {
			if o.ownsLocked() {
				e.proc.Log.Ack(seq)
			}
		}
		o.pings[0].sent = nil
		o.pings = o.pings[1:]
	}
}

// forgetLocked forgets a process, so that a peer that acknowledges nothing costs nothing.
func (o *Outbox) forgetLocked(e *entry) {
	delete(o.views, e)
	delete(o.sent, e)
	for _, p := range o.pings {
		delete(p.sent, e)
	}
}

// Ack serves process/ack. It does nothing for observers and for unknown processes.
func (o *Outbox) Ack(p protocol.AckParams) {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[p.ProcessID]
	if !o.ownsLocked() || e == nil || e.proc == nil {
		return
	}
	// Do not send again what a client has from its previous connection.
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

// outboxesLocked calls f with the outbox of every attached connection.
func (s *Session) outboxesLocked(f func(*Outbox)) {
	if s.out != nil {
		f(s.out)
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
	for _, e := range s.entries {
		if e.proc == nil {
			continue
		}
		o.viewLocked(e).at = e.proc.Log.Acked()
		if e.announced {
			o.queueLocked(e)
		}
	}
	return o
}

// ownLocked makes o the owner's outbox.
func (s *Session) ownLocked(o *Outbox) {
	s.out, s.client = o, o.peer.Name()
	s.acks = o.asks.ProcessAck
	s.setEvictLocked()
	if o.resumed && !s.acks {
		// Processes that wait for room have asked only the previous owner.
		o.writer.WantAck()
	}
}

// detachLocked removes the owner's connection from the session.
func (s *Session) detachLocked() {
	s.out = nil
	s.setEvictLocked()
}

// evictLocked reports whether output that the owner does not have may be evicted. It
// never may if the client acknowledges by itself, unless its lease says so.
func (s *Session) evictLocked() bool {
	if s.detachedOutput != nil {
		return s.out == nil && *s.detachedOutput == protocol.EvictOutput
	}
	return s.out == nil && s.opts.EvictDetached && !s.acks
}

func (s *Session) setEvictLocked() {
	for _, e := range s.entries {
		if e.proc != nil {
			e.proc.Log.SetEvict(s.evictLocked())
		}
	}
}

func (o *Outbox) appendEvent(frame []byte, id string, event output.Event) []byte {
	switch event.Kind {
	case output.Output:
		if o.asks.BinaryFrames {
			return protocol.AppendBinaryOutput(frame, id, event.Output)
		}
		return protocol.AppendOutput(frame, id, event.Output)
	case output.Exited:
		return protocol.AppendExited(frame, id, event.Seq, event.Exit)
	default:
		return protocol.AppendClosed(frame, id, event.Seq)
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
func (f *failures) appendNext(frame []byte) (_ []byte, ok bool) {
	if len(f.list) == 0 {
		return frame, false
	}
	frame = protocol.AppendFailed(frame, f.list[0].id, f.list[0].err, f.omitted)
	f.list[0] = failure{}
	f.list, f.omitted = f.list[1:], 0
	return frame, true
}
