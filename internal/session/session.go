// Package session implements the sessions of a server. A session owns processes and watches
// of files, and outlives the connections of its client: while it has none, it retains the
// events of its processes, and it ends when no connection resumes it in time.
//
// [Sessions] are all sessions of a server. Their [Sessions.Create], [Sessions.Resume] and
// [Sessions.Observe] attach a connection, a [Peer], to a [Session]. The connection receives
// events through an [Outbox], which its writer asks for the next event whenever it is free.
//
// A connection either owns its session or observes it. A session has at most one owner. It
// retains the events that its owner has not acknowledged; observers follow at their own
// pace, and miss what is evicted.
package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/quota"
	"execserver/protocol"
)

// Session is one session. All methods may be called concurrently.
//
// Lock order: Sessions.mu, Session.mu, the lock of a process's log.
type Session struct {
	ID        string
	Principal string // the principal that created it, and can resume it

	quotaKey string         // of its principal, in package quota
	budget   *output.Budget // of its principal
	quotas   *quotas
	counts   *counts // of the Sessions
	opts     Options
	log      *slog.Logger
	trees    *ownership.Owner // of the processes and their background processes

	life     *time.Timer   // ends the session; nil if nothing does; guarded by Sessions.mu
	lifeEnds time.Time     // when it does; guarded by Sessions.mu
	name     string        // "" for none; guarded by Sessions.mu
	keep     time.Duration // its lease; 0 for none; guarded by Sessions.mu and mu: either suffices to read it

	created time.Time
	order   uint64          // number of the session
	context context.Context // ends with the session
	cancel  context.CancelCauseFunc

	mu             sync.Mutex
	detachedOutput *protocol.DetachedOutput // of its lease; nil if Options and acks decide

	client    string // the name of the client that owns it, or owned it last
	processes map[string]*sessionProcess
	closed    []*sessionProcess // of processes, in the order in which they closed
	expiry    *time.Timer       // expires the first of closed
	by        Credentials       // of the client that created or last resumed it
	owner     *Outbox           // nil while detached
	changes   *Changes          // of the connection that owns it, or owned it last
	acks      bool              // the owner sends process/ack
	observers map[*Outbox]bool
	watches   map[string]*watch
	starts    uint64                 // number of starts
	graces    map[string]*time.Timer // kill background processes that were asked to end
	ended     bool
}

func newSession(id string, by Credentials, opts Options, quotas *quotas) *Session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Session{
		context: ctx, cancel: cancel,
		ID: id, Principal: by.Principal, by: by, opts: opts, log: opts.Log.With("sessionId", id), created: time.Now(),
		quotaKey: by.QuotaKey, budget: opts.Budget.ForPrincipal(by.QuotaKey), quotas: quotas,
		trees:     opts.Ownership.NewOwner(),
		processes: make(map[string]*sessionProcess),
	}
}

// quotas count the resources of the sessions of principals that have quotas.
type quotas struct {
	processes, watches *quota.Quota
	input              *quota.Quota     // bytes that wait for processes to read them
	screens            *quota.Quota     // units of memory for screens
	drawing            *quota.Semaphore // of goroutines that interpret output for a screen
}

// Screens that are kept count in units of screenUnit bytes.
const (
	screenUnit     = 256 << 10
	maxScreenUnits = 256
)

// find returns a process that has been spawned.
func (s *Session) find(id string) (*sessionProcess, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.processes[id]
	switch {
	case sp == nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown process id %s", id)
	case sp.proc == nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "process id %s is starting", id)
	}
	return sp, nil
}

// started returns the processes that have started, in the order of their starts.
func (s *Session) started() []*sessionProcess {
	s.mu.Lock()
	entries := make([]*sessionProcess, 0, len(s.processes))
	for _, sp := range s.processes {
		if sp.proc != nil {
			entries = append(entries, sp)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(entries, func(a, b *sessionProcess) int { return cmp.Compare(a.order, b.order) })
	return entries
}

// expireClosed forgets the processes that closed long enough ago and whose owner knows
// how they ended, unless a lease keeps their output to be read.
func (s *Session) expireClosed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiry = nil
	if s.ended {
		return
	}
	next := s.opts.ClosedTTL
	kept := s.closed[:0]
	for _, sp := range s.closed {
		left := time.Until(sp.closedAt.Add(s.opts.ClosedTTL))
		if left <= 0 && s.keep == 0 && sp.delivered() {
			sp.forgetLocked()
			continue
		}
		kept = append(kept, sp)
		if left > 0 {
			next = min(next, left)
		}
	}
	clear(s.closed[len(kept):])
	s.closed = kept
	if len(kept) > 0 {
		// One timer serves many processes that close together.
		s.expiry = time.AfterFunc(max(next, s.opts.ClosedTTL/32), s.expireClosed)
	}
}

// busyLocked reports whether a session has processes, watches, undelivered events or a
// lease, apart from background processes. closedBy is the outbox of the connection that was
// closed cleanly, or nil. What such a connection has sent counts as delivered, unless its client
// sends process/ack.
func (s *Session) busyLocked(closedBy *Outbox) bool {
	if s.ended || s.owner != nil || s.keep > 0 || len(s.observers) > 0 || len(s.watches) > 0 {
		return true
	}
	for _, sp := range s.processes {
		if sp.closedAt.IsZero() || !sp.delivered() && !closedBy.hasSent(sp) {
			return true
		}
	}
	return false
}

// finished reports whether every process of the session has closed.
func (s *Session) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.processes {
		if sp.closedAt.IsZero() {
			return false
		}
	}
	return true
}

// end ends the session for its clients: it sends no more events. The returned function
// kills everything that the session owns, which may take time. It is nil if the session
// had ended before.
func (s *Session) end(cause protocol.EndedBy, reason string) (kill func()) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	s.ended = true
	s.cancel(errors.New("the session has ended"))
	s.owner = nil
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.stopGracesLocked()
	procs := s.startedLocked()
	observers := s.observers
	s.observers = nil
	s.mu.Unlock()
	for o := range observers {
		o.peer.Disconnect("the session has ended")
	}
	s.log.Info("session ended", "reason", reason, "processes", len(procs))
	return func() {
		s.trees.End(cause)
		for _, p := range procs {
			p.Abandon()
		}
	}
}

func (s *Session) startedLocked() []*process.Process {
	procs := make([]*process.Process, 0, len(s.processes))
	for _, sp := range s.processes {
		if sp.proc != nil {
			procs = append(procs, sp.proc)
		}
	}
	return procs
}

// wait waits until all processes of an ended session have ended, and releases their memory. It
// also ends the watches, which may take time.
func (s *Session) wait() {
	s.trees.Wait()
	entries := s.started()
	awaitRecordings(entries)
	for _, sp := range entries {
		release(sp.proc)
	}
	s.budget.Release()
	s.mu.Lock()
	entries = entries[:0]
	for _, sp := range s.processes {
		sp.releaseLocked()
		entries = append(entries, sp)
	}
	s.mu.Unlock()
	for _, sp := range entries {
		sp.terminal.drop()
	}
	s.unwatchAll()
}
