package session

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/quota"
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
	Log            *slog.Logger   // nil: discard
	DetachedTTL    time.Duration  // how long a session lives without a connection
	SilentTTL      time.Duration  // the same if its peer only fell silent; at least DetachedTTL
	MaxKeep        time.Duration  // the longest lease; a negative value refuses leases
	ClosedTTL      time.Duration  // how long a closed process is remembered; default DetachedTTL, at least 80 s
	MaxSessions    int            // attached or detached
	MaxProcesses   int            // of one session, not closed
	MaxClosed      int            // of one session; the record of a process is small, but clients can start hundreds a second
	RetainedBytes  int64          // of output, per process
	Budget         *output.Budget // for the output of all processes
	EvictDetached  bool           // while detached, evict output instead of blocking the child
	MaxObservers   int            // of one session
	MaxQueuedInput int            // bytes that wait for all processes to read them from their stdin; default 256 MiB

	// Bounds for all principals that have quotas together (see package quota): of live
	// processes, and of watches. 0 means 1 << 20.
	AllProcesses, AllWatches int

	// Exited, if not nil, is called when a process of a session has ended. It must not
	// block.
	Exited func(session *Session, processID string, exit protocol.ExitRecord)
	// Recorder records the processes; nil records nothing.
	Recorder Recorder

	// Ownership tracks descendants of processes; nil uses process groups.
	Ownership *ownership.Ownership
	// DrainTimeout is as in process.Options: 0 means the default, a negative value the
	// end of the streams.
	DrainTimeout time.Duration
}

// minClosedTTL is how long clients expect the server to remember a closed process.
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
	switch {
	case o.MaxKeep == 0:
		o.MaxKeep = DefaultMaxKeep
	case o.MaxKeep < 0:
		o.MaxKeep = 0
	}
	if o.ClosedTTL <= 0 {
		o.ClosedTTL = max(o.DetachedTTL, minClosedTTL)
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = DefaultMaxSessions
	}
	if o.MaxQueuedInput <= 0 {
		o.MaxQueuedInput = 256 << 20
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
	if o.AllProcesses <= 0 {
		o.AllProcesses = 1 << 20
	}
	if o.AllWatches <= 0 {
		o.AllWatches = 1 << 20
	}
	if o.RetainedBytes <= 0 {
		o.RetainedBytes = process.DefaultRetainedBytes
	}
	if o.Budget == nil {
		o.Budget = output.NewBudget(DefaultRetainedTotalBytes)
	}
	if o.Ownership == nil {
		o.Ownership = ownership.Default()
	}
	return o
}

// Sessions are the sessions of a server. All methods may be called
// concurrently.
type Sessions struct {
	opts Options

	count    *quota.Quota // of sessions; changes under mu
	kept     *quota.Quota // of those with a lease; changes under mu
	quotas   *quotas      // of what they have
	mu       sync.Mutex
	byID     map[string]*Session
	detached map[*Session]*detachment
	creates  uint64 // number of sessions ever created
	detaches uint64 // number of detachments
	closed   bool
	drained  chan struct{} // nil until Drain; closed by finishDrainLocked
	answers  int           // that clients of EndControlled still wait for
	counts   counts
	ending   sync.WaitGroup // sessions whose processes are ending
}

// detachment is the time between two connections of a session, or between the last one
// and its end. A session that is resumed and detached again has another one, so that the
// timer of the first does not end the second.
type detachment struct {
	order uint64 // number of the detachment
	began time.Time
	ends  time.Time   // when the timer does
	timer *time.Timer // ends the session
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
	for !s.Draining() && s.makeRoom(by.QuotaKey) {
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
	case session.out != nil:
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
	return session, session.out
}

// Departure says how a connection ended.
type Departure int

const (
	// Lost means that it was reset, or closed without a farewell. The peer may come back.
	Lost Departure = iota
	// Silent means that the peer no longer answers. It may be asleep, and still want its
	// processes.
	Silent
	// Farewell means that the peer ended it in order.
	Farewell
	// Final means that nobody can come back, as on stdio.
	Final
)

// Leave ends the relation of a session and a connection that has ended. It removes an
// observer. Without its owner, a session is detached for a time that depends on how, or
// ended. Leave may take time.
func (s *Sessions) Leave(session *Session, out *Outbox, how Departure) {
	switch {
	case session.forgetObserver(out):
	case how == Final:
		if session.Owned(out) {
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

// detach detaches the session from the owner's connection of out, for the TTL or its
// lease, whichever is longer. It does nothing and returns nil if the session has another
// owner by now.
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
	ttl = max(ttl, session.keep)
	d := &detachment{order: s.detaches, began: time.Now(), ends: time.Now().Add(ttl)}
	d.timer = time.AfterFunc(ttl, func() { s.expire(session, d) })
	s.detached[session] = d
	return d
}

// expire ends a session to which nobody has come back.
func (s *Sessions) expire(session *Session, d *detachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detached[session] == d {
		s.endLocked(session, protocol.EndedBySessionExpired, "nobody resumed it")
	}
}

// EndAfter ends a session when it has lived for life, even if it is attached.
func (s *Sessions) EndAfter(session *Session, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session.lifeEnds = time.Now().Add(life)
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

// EndRevoked ends the sessions whose credentials were revoked, even if they are attached.
// A connection with such credentials gets no session any more, even if it still lives.
func (s *Sessions) EndRevoked(reason string) {
	var left []Peer
	s.mu.Lock()
	for _, session := range s.byID {
		session.mu.Lock()
		by, out := session.by, session.out
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
		peer.Left(reason)
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

func (s *Sessions) stopDetachmentLocked(session *Session) {
	if d := s.detached[session]; d != nil {
		d.timer.Stop()
		delete(s.detached, session)
	}
}

// Drain refuses new sessions from now on. The channel is closed when no session is left,
// and whoever has ended one with EndControlled knows that.
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

// Wait waits until the processes of all ended sessions are gone.
func (s *Sessions) Wait() { s.ending.Wait() }

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0F | 0x40
	b[8] = b[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
