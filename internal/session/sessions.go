package session

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/output"
	"execserver/internal/quota"
	"execserver/protocol"
)

// Sessions are the sessions of a server. All methods may be called
// concurrently.
type Sessions struct {
	opts Options

	count    *quota.Quota // of sessions; changes under mu
	kept     *quota.Quota // of those with a lease; changes under mu
	quotas   *quotas      // of their resources
	mu       sync.Mutex
	byID     map[string]*Session
	detached map[*Session]*detachment
	creates  uint64 // number of sessions ever created
	detaches uint64 // number of detachments
	closed   bool
	drained  chan struct{} // nil until Drain; closed by finishDrainLocked
	answers  int           // of EndControlled that have not been sent
	counts   counts
	ending   sync.WaitGroup // sessions whose processes are ending
}

// New makes an empty set of sessions.
func New(opts *Options) *Sessions {
	s := &Sessions{byID: make(map[string]*Session), detached: make(map[*Session]*detachment)}
	if opts != nil {
		s.opts = *opts
	}
	s.opts = s.opts.withDefaults()
	s.count, s.kept = quota.New(s.opts.MaxSessions), quota.New(s.opts.maxKept())
	s.quotas = &quotas{
		processes: quota.New(s.opts.AllProcesses), watches: quota.New(s.opts.AllWatches),
		input: quota.New(s.opts.MaxQueuedInput), screens: quota.New(maxScreenUnits), drawing: quota.NewSemaphore(1),
	}
	return s
}

// Create creates a session with peer attached. At a limit it ends an idle detached
// session.
func (s *Sessions) Create(peer Peer) (*Session, *Outbox, error) {
	by := peer.Credentials()
	for !s.Draining() && s.endOldestIdle(by.QuotaKey) {
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "server is shutting down")
	case s.drained != nil:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "the server is draining: it takes no new sessions, and ends with its last one")
	}
	if by.revoked() {
		return nil, nil, errRevoked
	}
	if refusal := s.count.Take(by.QuotaKey); refusal != nil {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "session refused: %s", refusal.Of("has", "sessions"))
	}
	session := newSession(newID(), by, s.opts, s.quotas)
	session.counts = &s.counts
	s.creates++
	session.order = s.creates
	s.byID[session.ID] = session
	session.mu.Lock()
	defer session.mu.Unlock()
	return session, session.attachLocked(peer, false), nil
}

// Resume attaches peer to a session that has lost its connection. It probes a connection
// that is still attached, and takes over if that is dead. The error has the code
// SessionAttached if it is alive, and InvalidRequest if there is no such session, it
// belongs to another principal, or its principal had other rights.
func (s *Sessions) Resume(id string, peer Peer) (*Session, *Outbox, error) {
	by := peer.Credentials()
	session, current := s.lookup(id)
	if session == nil || session.Principal != by.Principal {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	}
	attached := protocol.Errorf(protocol.CodeSessionAttached, "session %s is already attached to another connection", id)
	if current != nil {
		if current.peer.Probe() {
			return nil, nil, attached
		}
		s.detach(session, current, s.opts.DetachedTTL)
		current.peer.TakenOver(id, false)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	switch {
	case session.ended, session.by.Rights != by.Rights:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	case by.revoked():
		return nil, nil, errRevoked
	case session.owner != nil:
		return nil, nil, attached
	}
	session.by = by
	s.counts.resumed.Add(1)
	s.stopDetachmentLocked(session)
	return session, session.attachLocked(peer, true), nil
}

func (s *Sessions) lookup(id string) (*Session, *Outbox) {
	s.mu.Lock()
	session := s.byID[id]
	s.mu.Unlock()
	if session == nil {
		return nil, nil
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	return session, session.owner
}

// Observed returns the session, if the viewer may observe it.
func (s *Sessions) Observed(id string, v Viewer) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.observedLocked(id, v)
}

func (s *Sessions) observedLocked(id string, v Viewer) (*Session, error) {
	session := s.byID[id]
	if session == nil || !v.sees(session) {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	}
	return session, nil
}

// Controlled returns a session whose processes a client may signal: one that it could also
// own, because it belongs to the same principal, which had the same rights. The error has
// the code InvalidRequest. It reveals the existence of the session only to a client that may
// observe it.
func (s *Sessions) Controlled(id string, by Credentials, v Viewer) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.controlledLocked(id, by, v)
}

func (s *Sessions) controlledLocked(id string, by Credentials, v Viewer) (*Session, error) {
	if by.revoked() {
		return nil, errRevoked
	}
	session, err := s.observedLocked(id, v)
	if err != nil {
		return nil, err
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	if session.by.Principal != by.Principal || session.by.Rights != by.Rights {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"session %s belongs to other credentials, which may allow more or less than those of this connection", id)
	}
	return session, nil
}

// EndedByRequest is the reason of a session that session/end ended.
const EndedByRequest = "a client has asked for the end of the session"

// EndControlled serves session/end: it ends a session that the client may control. The
// caller must then end the connection of owner, unless that is nil. A drain does not finish
// until the caller has called answered, after it has answered the client.
func (s *Sessions) EndControlled(id string, by Credentials, v Viewer) (owner Peer, answered func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session, err := s.controlledLocked(id, by, v)
	if err != nil {
		return nil, nil, err
	}
	session.mu.Lock()
	if session.owner != nil {
		owner = session.owner.peer
	}
	session.mu.Unlock()
	s.answers++
	s.endLocked(session, protocol.EndedBySessionExpired, EndedByRequest)
	return owner, s.answered, nil
}

func (s *Sessions) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers--
	s.finishDrainLocked()
}

// EndAfter ends a session when it has lived for life, even if it is attached.
func (s *Sessions) EndAfter(session *Session, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session.lifeEnds = time.Now().Add(life)
	session.life = time.AfterFunc(life, func() {
		session.mu.Lock()
		out := session.owner
		session.mu.Unlock()
		s.End(session, "its longest life is over")
		if out != nil {
			out.peer.Disconnect("the session has lived for as long as these credentials allow")
		}
	})
}

// EndRevoked ends the sessions whose credentials were revoked, even if they are attached.
// A connection with such credentials gets no session from now on, even if it is still open.
func (s *Sessions) EndRevoked(reason string) {
	var left []Peer
	s.mu.Lock()
	for _, session := range s.byID {
		session.mu.Lock()
		by, out := session.by, session.owner
		session.mu.Unlock()
		if !by.revoked() {
			continue
		}
		s.endLocked(session, protocol.EndedBySessionExpired, reason)
		if out != nil {
			left = append(left, out.peer)
		}
	}
	s.mu.Unlock()
	for _, peer := range left {
		peer.Disconnect(reason)
	}
}

// End ends a session: it kills the processes and forgets the id.
func (s *Sessions) End(session *Session, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(session, protocol.EndedBySessionExpired, reason)
}

func (s *Sessions) endLocked(session *Session, cause protocol.EndedBy, reason string) {
	s.stopDetachmentLocked(session)
	if session.life != nil {
		session.life.Stop()
	}
	kill := session.end(cause, reason)
	if s.byID[session.ID] == session {
		delete(s.byID, session.ID)
		s.counts.ended.Add(1)
		s.count.Release(session.quotaKey)
		if session.keep > 0 {
			s.kept.Release(session.quotaKey)
		}
		s.finishDrainLocked()
	}
	if kill != nil { // others must not wait for it
		s.ending.Go(func() {
			kill()
			session.wait()
		})
	}
}

// Drain refuses new sessions from now on. The channel is closed when no session is left,
// and all answers of EndControlled have been sent.
func (s *Sessions) Drain() (drained <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained == nil {
		s.drained = make(chan struct{})
		s.finishDrainLocked()
		time.AfterFunc(0, s.endFinished)
	}
	return s.drained
}

// finishDrainLocked ends a drain once nothing is left. No session follows, so it does that
// only once.
func (s *Sessions) finishDrainLocked() {
	if s.drained != nil && len(s.byID) == 0 && s.answers == 0 {
		close(s.drained)
	}
}

// Draining reports whether Drain was called.
func (s *Sessions) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drained != nil
}

// Close ends all sessions and refuses new ones. Wait waits for their processes.
func (s *Sessions) Close(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, session := range s.byID {
		s.endLocked(session, protocol.EndedByServerShutdown, reason)
	}
}

// Wait waits until the processes of all ended sessions have ended.
func (s *Sessions) Wait() { s.ending.Wait() }

// Counts are the statistics of Sessions.
type Counts struct {
	Created, Resumed, Ended uint64 // sessions since New
	Attached, Detached      int    // sessions now
	Started                 uint64 // processes since New
	Output                  output.Counts
}

type counts struct{ resumed, ended, started atomic.Uint64 }

// Counts returns the statistics of the sessions.
func (s *Sessions) Counts() Counts {
	c := Counts{
		Resumed: s.counts.resumed.Load(), Ended: s.counts.ended.Load(), Started: s.counts.started.Load(),
		Output: s.opts.Budget.Counts(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Created, c.Detached = s.creates, len(s.detached)
	c.Attached = len(s.byID) - c.Detached
	return c
}

// Full reports whether every client would be refused a new session: the limit is reached, and
// no session is idle. It ignores background processes, because finding them takes time.
func (s *Sessions) Full() bool {
	if s.count.Check(quota.None) == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range s.detached {
		session.mu.Lock()
		busy := session.busyLocked(nil)
		session.mu.Unlock()
		if !busy {
			return false
		}
	}
	return true
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0F | 0x40
	b[8] = b[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
