package session

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"execserver/process"
	"execserver/protocol"
)

// Defaults of Options.
const (
	DefaultDetachedTTL        = 90 * time.Second
	DefaultSilentTTL          = 30 * time.Minute
	DefaultMaxSessions        = 1024
	DefaultMaxProcesses       = 4096
	DefaultMaxClosed          = 4096
	DefaultRetainedTotalBytes = 512 << 20
)

// Options of Sessions. The zero value means the defaults.
type Options struct {
	Log           *slog.Logger    // nil: discard
	DetachedTTL   time.Duration   // how long a session lives without a connection
	SilentTTL     time.Duration   // the same when its peer only fell silent; at least DetachedTTL
	ClosedTTL     time.Duration   // how long a closed process is remembered; default DetachedTTL, at least 80 s
	MaxSessions   int             // attached or not
	MaxProcesses  int             // of one session that are not closed
	MaxClosed     int             // of one session; the record of a process is small, but clients can start hundreds a second
	RetainedBytes int64           // of output, per process
	Budget        *process.Budget // for the output of all processes
	EvictDetached bool            // while detached, evict output rather than block the child
	MaxObservers  int             // of one session

	// Exited is called with how a process of a session has ended; it must not
	// block. nil: nobody wants to know.
	Exited func(session *Session, processID string, exit protocol.ExitRecord)

	// Ownership keeps hold of what processes start; nil: by process group.
	Ownership *process.Ownership
	// DrainTimeout is that of process.Options: 0 means the default, a negative
	// one the end of the streams.
	DrainTimeout time.Duration
}

// minClosedTTL is how long clients count on a closed process being known.
const minClosedTTL = 80 * time.Second

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.DetachedTTL <= 0 {
		o.DetachedTTL = DefaultDetachedTTL
	}
	if o.SilentTTL <= 0 {
		o.SilentTTL = DefaultSilentTTL
	}
	o.SilentTTL = max(o.SilentTTL, o.DetachedTTL)
	if o.ClosedTTL <= 0 {
		o.ClosedTTL = max(o.DetachedTTL, minClosedTTL)
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = DefaultMaxSessions
	}
	if o.MaxProcesses <= 0 {
		o.MaxProcesses = DefaultMaxProcesses
	}
	if o.MaxClosed <= 0 {
		o.MaxClosed = DefaultMaxClosed
	}
	if o.MaxObservers <= 0 {
		o.MaxObservers = DefaultMaxObservers
	}
	if o.RetainedBytes <= 0 {
		o.RetainedBytes = process.DefaultRetainedBytes
	}
	if o.Budget == nil {
		o.Budget = process.NewBudget(DefaultRetainedTotalBytes)
	}
	if o.Ownership == nil {
		o.Ownership = process.DefaultOwnership()
	}
	return o
}

// Sessions are the sessions of a server. All methods may be called
// concurrently.
type Sessions struct {
	opts Options

	mu       sync.Mutex
	byID     map[string]*Session
	detached map[*Session]*detachment
	detaches uint64 // how many there were
	closed   bool
	ending   sync.WaitGroup // sessions whose processes are going
}

// detachment is the time between two connections of a session, or between the
// last one and the end. A session that is resumed and detached again has another
// one, so that what was due at the end of the first does not hit the second.
type detachment struct {
	order uint64      // of the detachments
	timer *time.Timer // ends the session
}

// New makes an empty set of sessions.
func New(opts *Options) *Sessions {
	s := &Sessions{byID: make(map[string]*Session), detached: make(map[*Session]*detachment)}
	if opts != nil {
		s.opts = *opts
	}
	s.opts = s.opts.withDefaults()
	return s
}

// Create makes a session with peer attached. At the limit it ends a detached one
// that nobody would miss.
func (s *Sessions) Create(peer Peer) (*Session, *Outbox, error) {
	for s.full() && s.makeRoom() {
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "server is shutting down")
	case len(s.byID) >= s.opts.MaxSessions:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"session refused: the server has %d sessions, the limit is %d; raise it with --max-sessions", len(s.byID), s.opts.MaxSessions)
	}
	session := newSession(newID(), peer.Credentials(), s.opts)
	s.byID[session.ID] = session
	session.mu.Lock()
	defer session.mu.Unlock()
	return session, session.attachLocked(peer, false), nil
}

// full reports whether there are as many sessions as there may be.
func (s *Sessions) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && len(s.byID) >= s.opts.MaxSessions
}

// Resume attaches peer to a session that has lost its connection. A connection
// that is still attached is probed, and taken over when it is dead. The error
// has the code SessionAttached when it is alive, InvalidRequest when there is no
// such session, it is another principal's, or its principal had other rights.
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
		s.Detach(session, current)
		current.peer.TakenOver(id, false)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	switch {
	case session.ended, session.by.Rights != by.Rights:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	case session.out != nil:
		return nil, nil, attached
	}
	session.by = by
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
	return session, session.out
}

// Departure is how a connection ended.
type Departure int

const (
	// Lost: it was reset, or closed without a word. The peer may come back.
	Lost Departure = iota
	// Silent: the peer does not answer any more. It may be asleep, and the
	// processes that it left are then still wanted.
	Silent
	// Farewell: the peer ended it in an orderly way.
	Farewell
	// Final: nobody can come back, as on stdio.
	Final
)

// Leave lets go of a session whose connection has ended: an observer's is
// forgotten; without its owner's a session is detached, for as long as how the
// connection ended says, or ended. It may take its time.
func (s *Sessions) Leave(session *Session, out *Outbox, how Departure) {
	switch {
	case session.forgetObserver(out):
	case how == Final:
		if session.owned(out) {
			s.End(session, "its connection ended")
		}
	case how == Silent:
		s.detach(session, out, s.opts.SilentTTL)
	case how == Farewell:
		if d := s.detach(session, out, s.opts.DetachedTTL); d != nil {
			s.farewell(session, d, out)
		}
	default:
		s.detach(session, out, s.opts.DetachedTTL)
	}
}

// Detach lets a session go on without the owner's connection of out, for as long
// as the TTL says. It does nothing when the session has another owner by now.
func (s *Sessions) Detach(session *Session, out *Outbox) {
	s.detach(session, out, s.opts.DetachedTTL)
}

// detach is Detach with a TTL. It returns nil when it did nothing.
func (s *Sessions) detach(session *Session, out *Outbox, ttl time.Duration) *detachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	if session.out != out || session.ended {
		return nil
	}
	session.detachLocked()
	if s.closed {
		return nil
	}
	s.detaches++
	d := &detachment{order: s.detaches}
	d.timer = time.AfterFunc(ttl, func() { s.expire(session, d) })
	s.detached[session] = d
	return d
}

// expire ends a session that nobody has come back to.
func (s *Sessions) expire(session *Session, d *detachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detached[session] == d {
		s.endLocked(session, protocol.EndedBySessionExpired, "nobody resumed it")
	}
}

// EndAfter ends a session when it has lived for so long, whoever is attached then.
func (s *Sessions) EndAfter(session *Session, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session.life = time.AfterFunc(life, func() {
		session.mu.Lock()
		out := session.out
		session.mu.Unlock()
		s.End(session, "its longest life is over")
		if out != nil {
			out.peer.Left("the session has lived for as long as these credentials allow")
		}
	})
}

// EndRevoked ends the sessions whose credentials do not stand any more, whoever is
// attached then.
func (s *Sessions) EndRevoked(reason string) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.byID))
	s.mu.Unlock()
	for _, session := range all {
		session.mu.Lock()
		by, out := session.by, session.out
		session.mu.Unlock()
		if by.Stand == nil || by.Stand() {
			continue
		}
		s.End(session, reason)
		if out != nil {
			out.peer.Left(reason)
		}
	}
}

// End ends a session: its processes are killed, and its id is unknown from now
// on.
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
	}
	if kill != nil { // which others must not wait for
		s.ending.Go(func() {
			kill()
			session.wait()
		})
	}
}

func (s *Sessions) stopDetachmentLocked(session *Session) {
	if d := s.detached[session]; d != nil {
		d.timer.Stop()
		delete(s.detached, session)
	}
}

// Close ends all sessions, and refuses new ones. Wait waits for their
// processes.
func (s *Sessions) Close(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, session := range s.byID {
		s.endLocked(session, protocol.EndedByServerShutdown, reason)
	}
}

// Wait waits until the processes of all ended sessions are gone.
func (s *Sessions) Wait() { s.ending.Wait() }

// Count returns the number of sessions, attached or not.
func (s *Sessions) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0F | 0x40
	b[8] = b[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
