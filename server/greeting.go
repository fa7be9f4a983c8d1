package server

import (
	"errors"
	"time"

	"execserver/transport"
)

// Limits of a client until it has initialized its connection.
const (
	greetingTimeout = 10 * time.Second
	maxGreeting     = 64 << 10
)

var (
	errNoGreeting = errors.New("the client did not send initialize within " + greetingTimeout.String())
	errCrowd      = errors.New("too many connections are waiting for initialize")
)

// awaitGreeting bounds the time and bytes until the client has initialized the
// connection, on transports where anybody may connect, and the number of such
// connections.
func (c *connection) awaitGreeting(stream transport.Conn) {
	if limited, ok := stream.(transport.Limited); ok && c.resumable {
		limited.LimitTotal(maxGreeting)
		c.early = limited
		c.greeting = time.AfterFunc(greetingTimeout, func() {
			c.server.penalties.counts.Add(RefusedGreeting)
			c.end(errNoGreeting)
		})
	}
	if victim := c.server.queue(c); victim != nil {
		c.server.penalties.counts.Add(RefusedGreeting)
		victim.rpc.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: errCrowd.Error()}, errCrowd)
	}
}

// greeted lifts these limits. It runs on the reader.
func (c *connection) greeted() {
	if c.early != nil {
		c.greeting.Stop()
		c.early.LimitTotal(0)
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unqueueLocked(c)
	if _, served := s.conns[c]; served {
		s.countLocked(c)
	}
}

// queue adds a connection to those without a session. If that is one too many, it returns
// the connection to close: the one that has waited longest, of the source that has most.
func (s *Server) queue(c *connection) (victim *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.greetings.count >= s.startups.full() {
		for victim = range s.greetings.most {
			break
		}
		s.unqueueLocked(victim)
	}
	c.queued = s.greetings.add(c.principal.Name+" "+sourceOf(c.remote), c)
	return victim
}

func (s *Server) unqueueLocked(c *connection) {
	if c.queued != nil {
		s.greetings.remove(c.queued)
		c.queued = nil
	}
}

// reserve reserves a place for a connection that wants a new session, or none.
func (s *Server) reserve(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, served := s.conns[c]; !served {
		return ErrClosed
	}
	switch refusal := s.pools.connections.Check(c.principal.Share()); {
	case refusal == nil:
		s.countLocked(c)
		return nil
	case refusal.Greedy():
		return errors.New(refusal.Of("has", "connections"))
	}
	return &limitError{what: "connections", limit: s.opts.MaxConnections}
}

// mayObserve refuses one more observer to a principal that has its share of connections.
// Sessions bound the connections that resume one; observers have no other bound.
func (s *Server) mayObserve(c *connection) error {
	if refusal := s.pools.connections.Check(c.principal.Share()); refusal != nil && refusal.Greedy() {
		return errors.New(refusal.Of("has", "connections"))
	}
	return nil
}

// countLocked counts a connection among those with a session.
func (s *Server) countLocked(c *connection) {
	if !c.counted {
		s.pools.connections.Add(c.principal.Share())
		c.counted = true
	}
}

// uncount removes a connection from those with a session.
func (s *Server) uncount(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncountLocked(c)
}

func (s *Server) uncountLocked(c *connection) {
	if c.counted {
		s.pools.connections.Give(c.principal.Share())
		c.counted = false
	}
}
