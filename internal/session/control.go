package session

import "execserver/protocol"

// EndedByRequest is the reason of a session that session/end ended.
const EndedByRequest = "a client has asked for the end of the session"

// Controlled returns a session whose processes a client may signal: one that it could also
// own, because it belongs to the same principal, which had the same rights. The error has
// the code InvalidRequest. It tells only those who may observe the session that there is
// one.
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

// EndControlled serves session/end: it ends a session that the client may control. The
// caller must then end the connection of owner, unless that is nil. A drain does not finish
// until the caller has called answered, after it has told the client.
func (s *Sessions) EndControlled(id string, by Credentials, v Viewer) (owner Peer, answered func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session, err := s.controlledLocked(id, by, v)
	if err != nil {
		return nil, nil, err
	}
	session.mu.Lock()
	if session.out != nil {
		owner = session.out.peer
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
