package server

import (
	"errors"
	"time"

	"execserver/transport"
)

// What a client may take and send until it has initialized its connection.
const (
	greetingTimeout = 10 * time.Second
	maxGreeting     = 64 << 10
)

var (
	errNoGreeting = errors.New("the client did not send initialize within " + greetingTimeout.String())
	errCrowd      = errors.New("too many connections are waiting for initialize")
)

// awaitGreeting bounds what comes before the client has initialized the connection,
// on transports where anybody may be at the other end, and how many such
// connections there are.
func (c *connection) awaitGreeting(stream transport.Conn) {
	if limited, ok := stream.(transport.Limited); ok && c.resumable {
		limited.LimitTotal(maxGreeting)
		c.early = limited
		c.greeting = time.AfterFunc(greetingTimeout, func() { c.end(errNoGreeting) })
	}
	if victim := c.server.queue(c); victim != nil {
		victim.rpc.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: errCrowd.Error()}, errCrowd)
	}
}

// greeted ends that. It runs on the reader.
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
		s.sitLocked(c)
	}
}

// queue puts a connection among those that have no session yet. Where that is one
// too many it returns which has to go: the one that has waited longest, of whom most
// of them are.
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

// reserve keeps a place for a connection that wants a new session.
func (s *Server) reserve(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, served := s.conns[c]; {
	case !served:
		return ErrClosed
	case s.seated >= s.opts.MaxConnections:
		return &limitError{what: "connections", limit: s.opts.MaxConnections}
	}
	s.sitLocked(c)
	return nil
}

// sitLocked counts a connection among those with a session.
func (s *Server) sitLocked(c *connection) {
	if !c.seated {
		s.seated++
		c.seated = true
	}
}

// stand ends that.
func (s *Server) stand(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standLocked(c)
}

func (s *Server) standLocked(c *connection) {
	if c.seated {
		s.seated--
		c.seated = false
	}
}
