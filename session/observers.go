package session

import "execserver/protocol"

// DefaultMaxObservers is how many connections may observe one session unless
// told otherwise.
const DefaultMaxObservers = 16

// Observe attaches peer to a session as an observer: it gets all events from now
// on, at its own pace, and holds nobody up. The error has the code
// InvalidRequest when there is no such session or it has too many observers. others
// says that the peer may observe those of other principals.
func (s *Sessions) Observe(id string, peer Peer, others bool) (*Session, *Outbox, error) {
	session, _ := s.lookup(id)
	if session == nil || !others && session.Principal != peer.Credentials().Principal {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	switch n := len(session.observers); {
	case session.ended:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id %s", id)
	case n >= session.opts.MaxObservers:
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"session %s has %d observers, the limit is %d", id, n, session.opts.MaxObservers)
	}
	o := newOutbox(session, peer)
	o.resumed, o.drops = true, true
	for _, e := range session.entries {
		if e.proc != nil && e.announced {
			o.viewLocked(e).at = e.proc.Log.Tail()
		}
	}
	if session.observers == nil {
		session.observers = make(map[*Outbox]bool)
	}
	session.observers[o] = true
	session.log.Info("session observed", "observers", len(session.observers))
	return session, o, nil
}

// TakeOver makes the observer of out the owner of its session, as if it had
// resumed it: what the owner before had not acknowledged is sent again, and
// that owner's connection is ended. The error has the code InvalidRequest when
// out is not the outbox of an observer.
func (s *Sessions) TakeOver(out *Outbox) error {
	former, err := s.takeOver(out)
	if former != nil {
		former.peer.TakenOver(out.session.ID, true)
	}
	return err
}

func (s *Sessions) takeOver(out *Outbox) (former *Outbox, err error) {
	session := out.session
	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	switch {
	case session.ended:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", session.ID)
	case out.ownsLocked():
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s is this connection's own already", session.ID)
	case !out.attachedLocked():
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s is not observed by this connection any more", session.ID)
	}
	s.stopDetachmentLocked(session)
	delete(session.observers, out)
	former = session.out
	session.ownLocked(out)
	for _, e := range session.entries {
		if e.proc == nil {
			continue
		}
		// An observer may be behind the owner before it, or ahead of what that
		// one has acknowledged.
		v := out.viewLocked(e)
		e.proc.Log.Rewind(v.at)
		v.at = e.proc.Log.Acked()
		if e.announced {
			out.readyLocked(e)
		}
	}
	session.log.Info("session taken over by an observer", "attached", former != nil)
	return former, nil
}

// forgetObserver lets go of an observer and says whether out was one.
func (s *Session) forgetObserver(out *Outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	observed := s.observers[out]
	delete(s.observers, out)
	return observed
}

// owned reports whether out is the owner's outbox.
func (s *Session) owned(out *Outbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out == out
}

// dismissSlowLocked ends the connections of observers that have more to be told
// than there are processes to remember: their queues would grow without bound.
func (s *Session) dismissSlowLocked() {
	for o := range s.observers {
		if len(o.queue) > s.opts.MaxProcesses+2*s.opts.MaxClosed {
			delete(s.observers, o)
			o.peer.Left("the observer does not take what it is sent")
		}
	}
}
