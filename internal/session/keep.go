package session

import (
	"time"

	"execserver/protocol"
)

// A lease keeps a session without a connection for longer than usual. While a session has
// one, nothing but the end of that time ends it: no farewell, and no need for room. So
// only some of the sessions may have a lease.

// DefaultMaxKeep is the longest lease by default.
const DefaultMaxKeep = 24 * time.Hour

// maxKept is how many of the sessions may have a lease. The others remain for clients that
// know no leases.
func (o *Options) maxKept() int { return max(1, o.MaxSessions/2) }

// Lifetime says how long sessions live without a connection.
func (s *Sessions) Lifetime() protocol.SessionLifetime {
	return protocol.SessionLifetime{
		DetachedMs: uint64(s.opts.DetachedTTL.Milliseconds()),
		SilentMs:   uint64(s.opts.SilentTTL.Milliseconds()),
		MaxKeepMs:  uint64(s.opts.MaxKeep.Milliseconds()),
	}
}

// Keep serves session/keep for the owner's connection of out: it gives the session a
// lease, or none if p.KeepMs is 0, and returns what it granted. The error has the code
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
