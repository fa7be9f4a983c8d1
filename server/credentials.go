package server

import (
	"errors"
	"time"

	"execserver/transport"
)

// expiryInterval is how often a connection compares the clock with the expiry of its
// credentials. A timer would not count the time that the machine sleeps, and clocks are
// set.
const expiryInterval = 10 * time.Second

var (
	errExpired = errors.New("the credentials of this connection have expired; connect again with new ones to resume the session")
	errRevoked = errors.New("the credentials of this connection have been revoked or changed")
)

// Recheck ends the connections whose credentials are no longer valid, and the sessions
// that were created with them. The caller must refresh Options.Auth first.
func (s *Server) Recheck() {
	s.mu.Lock()
	var revoked []*connection
	for c := range s.conns {
		if !s.auth.Holds(c.principal) {
			revoked = append(revoked, c)
		}
	}
	s.mu.Unlock()
	for _, c := range revoked {
		c.end(errRevoked)
	}
	if s.opts.Internal.Gateway != nil {
		s.opts.Internal.Gateway.Recheck(s.auth.Holds)
	}
	// The connections that could create other sessions have ended.
	s.sessions.EndRevoked(errRevoked.Error())
}

// expire ends the connection when its credentials expire.
func (c *connection) expire() {
	for {
		left := time.Until(c.principal.Expires)
		if left <= 0 {
			c.end(errExpired)
			return
		}
		select {
		case <-c.rpc.Context().Done():
			return
		case <-time.After(min(left, expiryInterval)):
		}
	}
}

// end closes the connection for a reason that it sends to the peer. The session can be
// resumed.
func (c *connection) end(reason error) {
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: reason.Error()}, reason)
}
