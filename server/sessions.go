package server

import (
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// keeps returns why the server keeps no session of this connection beyond its usual time,
// or nil.
func (c *connection) keeps() error {
	switch {
	case !c.resumable:
		return protocol.Errorf(protocol.CodeInvalidRequest, "lease refused: the sessions of this connection end with it")
	case c.server.sessions.Lifetime().MaxKeepMs == 0:
		return protocol.Errorf(protocol.CodeInvalidRequest, "leases are not allowed here; the server's operator can allow them")
	}
	return nil
}

// keep serves session/keep. It runs on the reader, so that a connection that ends after
// the request leaves a session with the lease.
func (c *connection) keep(r *rpc.Request, p protocol.KeepParams) {
	if err := c.keeps(); err != nil {
		r.Fail(err)
		return
	}
	granted, err := c.server.sessions.Keep(c.outbox, p)
	if err != nil {
		r.Fail(err)
		return
	}
	e := c.event("session kept")
	e.KeepMs = new(uint64(granted.Milliseconds()))
	if p.Name != nil {
		e.Name = *p.Name
	}
	c.server.audit.Record(e)
	r.Reply(protocol.KeepResult{KeepMs: *e.KeepMs})
}

// viewer says which sessions the client may list: those that it may observe.
func (c *connection) viewer() session.Viewer {
	return session.Viewer{Principal: c.principal.Name, Others: c.principal.Grant.Observes()}
}

// listSessions serves session/list.
func (c *connection) listSessions(r *rpc.Request, _ protocol.NoParams) {
	r.Pool(func() {
		list, err := c.server.sessions.List(c.viewer(), r.Reserve)
		if err != nil {
			r.Fail(err)
			return
		}
		r.Reply(list)
	})
}

// control calls serve with the session that a request about a process names, if the client
// may control it.
func (c *connection) control(r *rpc.Request, sessionID *string, processID string, serve func(of *session.Session)) {
	find := func(id string) (*session.Session, error) {
		return c.server.sessions.Controlled(id, c.Credentials(), c.viewer())
	}
	c.inSession(r, sessionID, processID, find, serve)
}

// look calls serve with the session that a request about a process names, if the client may
// observe it.
func (c *connection) look(r *rpc.Request, sessionID *string, processID string, serve func(of *session.Session)) {
	find := func(id string) (*session.Session, error) { return c.server.sessions.Observed(id, c.viewer()) }
	c.inSession(r, sessionID, processID, find, serve)
}

// inSession calls serve with the session that a request about a process names, in the
// process's lane. Without a name that is the session of the connection; others it finds.
func (c *connection) inSession(r *rpc.Request, sessionID *string, processID string,
	find func(id string) (*session.Session, error), serve func(of *session.Session),
) {
	own := c.session != nil && (sessionID == nil || *sessionID == c.session.ID)
	switch {
	case own:
		r.Queue(processID, rpc.Urgent, func(*rpc.Lane) { serve(c.session) })
	case sessionID == nil:
		r.Fail(c.noSession(r.Method + "` without `sessionId"))
	default:
		// A process of the connection's own session may have the same name: then the two
		// share a lane, which delays neither.
		r.Queue(*sessionID+" "+processID, rpc.Urgent, func(*rpc.Lane) {
			of, err := find(*sessionID)
			if err != nil {
				r.Fail(err)
				return
			}
			serve(of)
		})
	}
}

// endSession serves session/end.
func (c *connection) endSession(r *rpc.Request, p protocol.EndSessionParams) {
	owner, answered, err := c.server.sessions.EndControlled(p.SessionID, c.Credentials(), c.viewer())
	if err != nil {
		r.Fail(err)
		return
	}
	defer answered()
	e := c.event("session ended")
	e.Session = p.SessionID
	c.server.audit.Record(e)
	r.Reply(protocol.Empty{})
	if owner != nil { // it may be this connection, which gets the reply first
		owner.Left(session.EndedByRequest)
	}
}
