package server

import (
	"execserver/httprequest"
	"execserver/internal/audit"
	"execserver/protocol"
	"execserver/session"
)

// event is one about this connection.
func (c *connection) event(name string) audit.Event {
	e := audit.Event{Event: name, Remote: c.remote, Principal: c.principal.Name}
	if s := c.session; s != nil {
		e.Session = s.ID
	}
	return e
}

// commit writes an event down before what it is about is done. The error is one for
// the client.
func (c *connection) commit(e audit.Event) error {
	if err := c.server.opts.Audit.Commit(e); err != nil {
		return protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return nil
}

// auditEntry writes down that the connection has a session.
func (c *connection) auditEntry(s *session.Session, p protocol.Initialize) {
	name := "session created"
	switch {
	case p.ResumeSessionID != nil:
		name = "session resumed"
	case p.ObserveSessionID != nil:
		name = "session observed"
	}
	e := c.event(name)
	e.Session = s.ID
	c.server.opts.Audit.Record(e)
}

// auditStart writes down what is about to be started.
func (c *connection) auditStart(p protocol.Start, dir string) error {
	e := c.event("start")
	e.Process, e.Argv, e.Cwd, e.Sandbox = p.ProcessID, p.Argv, dir, "none"
	if p.Form == protocol.StartPrepared {
		e.Paths = []string{p.Program.String()}
	}
	switch {
	case c.principal.Grant.Starts() != nil && p.Sandbox != nil:
		e.Sandbox = "that of the credentials, and " + string(p.Sandbox)
	case c.principal.Grant.Starts() != nil:
		e.Sandbox = "that of the credentials"
	case p.Sandbox != nil:
		e.Sandbox = string(p.Sandbox)
	}
	return c.commit(e)
}

// auditSignal writes down that a process was sent a signal.
func (c *connection) auditSignal(id, signal string) {
	e := c.event("signal")
	e.Process, e.Signal = id, signal
	c.server.opts.Audit.Record(e)
}

// auditChange writes down which files are about to be changed.
func (c *connection) auditChange(method string, paths []string) error {
	e := c.event("change")
	e.Method, e.Paths = method, paths
	return c.commit(e)
}

// auditRequest writes down where an HTTP request goes, without what may be secret.
func (c *connection) auditRequest(p protocol.HTTPRequest) error {
	e := c.event("http request")
	e.Method = p.Method
	if origin, err := httprequest.Origin(p.URL); err == nil { // another URL goes nowhere
		e.Paths = []string{origin}
	}
	return c.commit(e)
}

// auditExit writes down how a process has ended.
func (s *Server) auditExit(of *session.Session, id string, exit protocol.ExitRecord) {
	s.opts.Audit.Record(audit.Event{
		Event: "exit", Principal: of.Principal, Session: of.ID, Process: id,
		ExitCode: &exit.ExitCode, Signal: exit.Signal, EndedBy: string(exit.EndedBy),
	})
}

// auditRefusal writes down that somebody was not let in.
func (s *Server) auditRefusal(remote, reason string) {
	s.opts.Audit.Refused(audit.Event{Event: "authentication refused", Remote: remote, Reason: reason})
}
