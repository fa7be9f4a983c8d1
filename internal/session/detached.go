package session

import (
	"cmp"
	"slices"
	"time"

	"execserver/internal/ownership"
	"execserver/protocol"
)

// Departure is how a connection ended.
type Departure int

const (
	// Lost means that it was reset, or closed without a close frame. The peer may reconnect.
	Lost Departure = iota
	// Silent means that the peer no longer answers. It may be asleep, and need its processes
	// when it wakes up.
	Silent
	// CleanClose means that the peer ended it in order.
	CleanClose
	// Final means that no other connection can resume the session, as on stdio.
	Final
)

// detachment is the time between two connections of a session, or between the last one
// and its end. A session that is resumed and detached again has another one, so that the
// timer of the first does not end the second.
type detachment struct {
	order uint64 // number of the detachment
	began time.Time
	ends  time.Time   // when the timer does
	timer *time.Timer // ends the session
}

// Leave removes a connection that has ended from its session. If it was the owner, the session
// ends or is detached: which, and for how long, depends on how the connection ended. Leave may
// take time.
func (s *Sessions) Leave(session *Session, out *Outbox, how Departure) {
	switch {
	case session.forgetObserver(out):
	case how == Final:
		if session.Owned(out) {
			s.End(session, "its connection ended")
		}
	case how == Silent:
		s.detach(session, out, s.opts.SilentTTL)
	case how == CleanClose:
		if d := s.detach(session, out, s.opts.DetachedTTL); d != nil {
			s.endAfterClose(session, d, out)
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
	if session.owner != out || session.ended {
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

// expire ends a session that was not resumed in time.
func (s *Sessions) expire(session *Session, d *detachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detached[session] == d {
		s.endLocked(session, protocol.EndedBySessionExpired, "nobody resumed it")
	}
}

func (s *Sessions) stopDetachmentLocked(session *Session) {
	if d := s.detached[session]; d != nil {
		d.timer.Stop()
		delete(s.detached, session)
	}
}

// A session is idle if it holds nothing: no process runs, also in the background, nothing
// is watched, the owner has received every event, and it has no lease.

// endAfterClose ends a session at once if it is idle, because its owner has closed the
// connection cleanly.
func (s *Sessions) endAfterClose(session *Session, d *detachment, out *Outbox) {
	session.mu.Lock()
	busy := session.busyLocked(out)
	session.mu.Unlock()
	if busy { // known without listing background processes
		return
	}
	background := s.opts.Ownership.HasBackground([]*ownership.Owner{session.trees})
	s.endIdle(session, d, out, background, "its client is done")
}

// endOldestIdle ends the idle session that has been detached for longest if a principal can have
// no new one otherwise, and reports whether it did. A principal that has its quota
// gives up one of its own.
func (s *Sessions) endOldestIdle(principal string) bool {
	refusal := s.count.Check(principal)
	if refusal == nil {
		return false
	}
	type candidate struct {
		session *Session
		d       *detachment
	}
	var idle []candidate
	var owners []*ownership.Owner
	s.mu.Lock()
	for session, d := range s.detached {
		if refusal.Principal && session.quotaKey != principal {
			continue
		}
		session.mu.Lock()
		if !session.busyLocked(nil) {
			idle = append(idle, candidate{session, d})
			owners = append(owners, session.trees)
		}
		session.mu.Unlock()
	}
	s.mu.Unlock()
	if len(idle) == 0 {
		return false
	}
	slices.SortFunc(idle, func(a, b candidate) int { return cmp.Compare(a.d.order, b.d.order) })
	background := s.opts.Ownership.HasBackground(owners)
	return slices.ContainsFunc(idle, func(c candidate) bool {
		return s.endIdle(c.session, c.d, nil, background, "room was needed for another one")
	})
}

// endIdle ends a detached session if it is idle, and reports whether it was. The caller
// passes the background processes, because finding them takes time.
func (s *Sessions) endIdle(session *Session, d *detachment, read *Outbox, background map[*ownership.Owner]bool, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detached[session] != d || background[session.trees] {
		return false
	}
	session.mu.Lock()
	busy := session.busyLocked(read)
	session.mu.Unlock()
	if !busy {
		s.endLocked(session, protocol.EndedBySessionExpired, reason)
	}
	return !busy
}

// drainInterval is the time between two searches for finished sessions during a drain.
const drainInterval = time.Second

// endFinished ends the sessions that would only delay a drain: they have no connection, all
// processes have ended, and the time in which clients usually resume a session is over, even
// if there is a lease. It calls itself again until no session is left.
func (s *Sessions) endFinished() {
	finished := make(map[*Session]*detachment)
	var owners []*ownership.Owner
	s.mu.Lock()
	over := s.closed || len(s.byID) == 0
	for session, d := range s.detached {
		if time.Since(d.began) >= s.opts.DetachedTTL && session.finished() {
			finished[session] = d
			owners = append(owners, session.trees)
		}
	}
	s.mu.Unlock()
	if over {
		return
	}
	background := s.opts.Ownership.HasBackground(owners)
	s.mu.Lock()
	for session, d := range finished {
		if s.detached[session] == d && !background[session.trees] {
			s.endLocked(session, protocol.EndedBySessionExpired, "its commands have ended, and the server drains")
		}
	}
	s.mu.Unlock()
	time.AfterFunc(drainInterval, s.endFinished)
}

// A lease keeps a session without a connection for longer than usual. While a session has
// one, nothing but the end of that time ends it: no clean close, and no new session that needs its slot. So
// only some of the sessions may have a lease.

// Lifetime returns how long sessions live without a connection.
func (s *Sessions) Lifetime() protocol.SessionLifetime {
	return protocol.SessionLifetime{
		DetachedMs: uint64(s.opts.DetachedTTL.Milliseconds()),
		SilentMs:   uint64(s.opts.SilentTTL.Milliseconds()),
		MaxKeepMs:  uint64(s.opts.MaxKeep.Milliseconds()),
	}
}

// Keep serves session/keep for the owner's connection of out: it gives the session a
// lease, or none if p.KeepMs is 0, and returns the length of the lease. The error has the code
// InvalidRequest if another session of the principal has the name, too many sessions have
// leases, or out has lost the session.
func (s *Sessions) Keep(out *Outbox, p protocol.KeepParams) (granted time.Duration, err error) {
	session, by := out.session, out.peer.Credentials()
	name, keep := p.Name, time.Duration(min(p.KeepMs, uint64(s.opts.MaxKeep.Milliseconds())))*time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	switch {
	case by.revoked():
		return 0, errRevoked
	case session.ended:
		return 0, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", session.ID)
	case !out.ownsLocked():
		return 0, protocol.Errorf(protocol.CodeInvalidRequest, "session %s is not this connection's any more", session.ID)
	}
	if name != nil {
		if other := s.namedLocked(*name, session.Principal); other != nil && other != session {
			return 0, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has the name %s already", other.ID, *name)
		}
	}
	granted = keep
	if !session.lifeEnds.IsZero() {
		granted = max(0, min(granted, time.Until(session.lifeEnds)))
	}
	switch {
	case granted > 0 && session.keep == 0:
		if refusal := s.kept.Take(session.quotaKey); refusal != nil {
			return 0, protocol.Errorf(protocol.CodeInvalidRequest, "lease refused: %s", refusal.Of("keeps", "sessions"))
		}
	case granted == 0 && session.keep > 0:
		s.kept.Release(session.quotaKey)
	}
	session.keep, session.detachedOutput = granted, nil
	if granted > 0 {
		session.detachedOutput = p.DetachedOutput
	}
	session.setEvictLocked()
	if name != nil {
		session.name = *name
	}
	session.log.Info("session kept", "name", session.name, "for", granted)
	return granted, nil
}

// namedLocked returns the session of a principal that has a name, or nil.
func (s *Sessions) namedLocked(name, principal string) *Session {
	for _, session := range s.byID {
		if session.name == name && session.Principal == principal {
			return session
		}
	}
	return nil
}
