package server

import (
	"errors"

	"execserver/internal/quota"
	"execserver/protocol"
)

// quotas count what the principals of a server have at the same time, apart from what their
// sessions have. Nobody but a server's only principal can take all of something.
type quotas struct {
	connections *quota.Quota // with a session, or that asked for none
	forwards    *quota.Quota // forwarded connections
	operations  *quota.Quota // file operations under way
	handles     *quota.Quota // open files of principals that have quotas
}

func newQuotas(o *Options) quotas {
	return quotas{
		connections: quota.New(o.MaxConnections),
		forwards:    quota.New(min(maxAllForwards, quarterOfDescriptors())),
		operations:  quota.New(maxFileOperations),
		handles:     quota.New(quarterOfDescriptors() / 2),
	}
}

// takeForward counts one more forwarded connection.
func (c *connection) takeForward() error {
	if c.forwards.Add(1) > maxForwards {
		c.forwards.Add(-1)
		return protocol.Errorf(protocol.CodeInvalidRequest,
			"this connection has its limit of %d forwarded connections; close one", maxForwards)
	}
	if refusal := c.server.quotas.forwards.Take(c.principal.QuotaKey()); refusal != nil {
		c.forwards.Add(-1)
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s; close one", refusal.Of("has", "forwarded connections"))
	}
	return nil
}

func (c *connection) giveForward() {
	c.forwards.Add(-1)
	c.server.quotas.forwards.Release(c.principal.QuotaKey())
}

// takeOperation counts one more file operation.
func (c *connection) takeOperation() error {
	refusal := c.server.quotas.operations.Take(c.principal.QuotaKey())
	switch {
	case refusal == nil:
		return nil
	case refusal.Principal:
		return protocol.Errorf(protocol.CodeInternal,
			"%s; perhaps a file system does not answer", refusal.Of("has", "file operations under way"))
	}
	return protocol.Errorf(protocol.CodeInternal,
		"the server has its limit of %d file operations under way; perhaps a file system does not answer", refusal.Limit)
}

func (c *connection) giveOperation() { c.server.quotas.operations.Release(c.principal.QuotaKey()) }

// takeHandle counts one more open file of a principal that has a quota.
func (c *connection) takeHandle() (leave func(), err error) {
	of := c.principal.QuotaKey()
	if of == quota.Everybody {
		return func() {}, nil
	}
	handles := c.server.quotas.handles
	if refusal := handles.Take(of); refusal != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "%s; close one", refusal.Of("has", "file handles"))
	}
	return func() { handles.Release(of) }, nil
}

// reserve reserves a place for a connection that wants a new session, or none.
func (s *Server) reserve(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, served := s.conns[c]; !served {
		return ErrClosed
	}
	switch refusal := s.quotas.connections.Check(c.principal.QuotaKey()); {
	case refusal == nil:
		s.countLocked(c)
		return nil
	case refusal.Principal:
		return errors.New(refusal.Of("has", "connections"))
	}
	return &limitError{what: "connections", limit: s.opts.MaxConnections}
}

// mayObserve refuses one more observer to a principal that has its quota of connections.
// Sessions bound the connections that resume one; observers have no other bound.
func (s *Server) mayObserve(c *connection) error {
	if refusal := s.quotas.connections.Check(c.principal.QuotaKey()); refusal != nil && refusal.Principal {
		return errors.New(refusal.Of("has", "connections"))
	}
	return nil
}

// countLocked counts a connection among those with a session.
func (s *Server) countLocked(c *connection) {
	if !c.counted {
		s.quotas.connections.Add(c.principal.QuotaKey())
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
		s.quotas.connections.Release(c.principal.QuotaKey())
		c.counted = false
	}
}

// countInitialized counts a connection that its client has initialized, unless it has ended.
func (s *Server) countInitialized(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, served := s.conns[c]; served {
		s.countLocked(c)
	}
}
