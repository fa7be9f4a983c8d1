package session

import (
	"execserver/internal/quota"
	"execserver/protocol"
)

// Observe attaches peer to a session as an observer. The observer receives all events
// from now on at its own pace, and does not delay others. The error has the code
// InvalidRequest if there is no such session or it has too many observers. With others, the
// peer may observe sessions of other principals (see Viewer).
func (s *Sessions) Observe(id string, peer Peer, others bool) (*Session, *Outbox, error) {
	session, _ := s.lookup(id)
	if session == nil || !(Viewer{peer.Credentials().Principal, others}).sees(session) {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	if session.ended {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	}
	if err := session.checkObserverLocked(peer.Credentials().Principal); err != nil {
		return nil, nil, err
	}
	o := newOutbox(session, peer)
	o.resumed, o.tellsDropped = true, true
	for _, sp := range session.processes {
		if sp.proc != nil && sp.announced {
			o.viewLocked(sp).at = sp.proc.Log.Tail()
		}
	}
	if session.observers == nil {
		session.observers = make(map[*Outbox]bool)
	}
	session.observers[o] = true
	session.log.Info("session observed", "observers", len(session.observers))
	return session, o, nil
}

// checkObserverLocked refuses one more observer when the session has as many as it may.
// Observers of other principals cannot take all slots, because the session's own principal
// must be able to observe the session and take it over.
func (s *Session) checkObserverLocked(principal string) error {
	if n := len(s.observers); n >= s.opts.MaxObservers {
		return protocol.Errorf(protocol.CodeInvalidRequest, "session %s has %d observers, the limit is %d", s.ID, n, s.opts.MaxObservers)
	}
	if principal == s.Principal {
		return nil
	}
	own, most := 0, int(quota.Of(int64(s.opts.MaxObservers)))
	for o := range s.observers {
		if o.peer.Credentials().Principal == principal {
			own++
		}
	}
	if own >= most {
		return protocol.Errorf(protocol.CodeInvalidRequest, "session %s has %d observers of this principal, the limit is %d", s.ID, own, most)
	}
	return nil
}

// TakeOver makes the observer of out the owner of its session, as if it had resumed it:
// it receives again what the previous owner had not acknowledged, and the previous
// owner's connection ends. The error has the code InvalidRequest if out is not the outbox
// of an observer.
func (s *Sessions) TakeOver(out *Outbox) error {
	former, err := s.takeOver(out)
	if former != nil {
		former.peer.TakenOver(out.session.ID, true)
	}
	return err
}

func (s *Sessions) takeOver(out *Outbox) (former *Outbox, err error) {
	session, by := out.session, out.peer.Credentials()
	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	switch {
	case by.revoked():
		return nil, errRevoked
	case session.ended:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", session.ID)
	case out.ownsLocked():
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s is this connection's own already", session.ID)
	case !out.attachedLocked():
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s is not observed by this connection any more", session.ID)
	case session.by.Principal != by.Principal || session.by.Rights != by.Rights:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"session %s belongs to other credentials, which may allow more or less than those of this connection", session.ID)
	}
	session.by = by
	s.stopDetachmentLocked(session)
	delete(session.observers, out)
	former = session.owner
	session.ownLocked(out)
	for _, sp := range session.processes {
		if sp.proc == nil {
			continue
		}
		// An observer may be behind the previous owner, or ahead of the events that the
		// previous owner has acknowledged.
		v := out.viewLocked(sp)
		sp.proc.Log.Rewind(v.at)
		v.at = sp.proc.Log.Acked()
		if sp.announced {
			out.queueLocked(sp)
		}
	}
	session.log.Info("session taken over by an observer", "attached", former != nil)
	return former, nil
}

// forgetObserver removes an observer and reports whether out was one.
func (s *Session) forgetObserver(out *Outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	observed := s.observers[out]
	delete(s.observers, out)
	return observed
}

// Owned reports whether out is the owner's outbox.
func (s *Session) Owned(out *Outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner == out
}

// maxUnsent bounds the processes whose events wait for one connection. It is larger than the
// number of processes of a session, because forgotten ones may still be queued.
func (s *Session) maxUnsent() int { return s.opts.MaxProcesses + 2*s.opts.MaxClosed }

// dismissSlowLocked ends the connections of observers whose queue exceeds maxUnsent, because
// it would grow without bound.
func (s *Session) dismissSlowLocked() {
	for o := range s.observers {
		if len(o.queue) > s.maxUnsent() {
			delete(s.observers, o)
			o.peer.Disconnect("the observer does not take what it is sent")
		}
	}
}
