package server

import (
	"log/slog"

	"execserver/internal/audit"
	"execserver/internal/httprequest"
	"execserver/internal/session"
	"execserver/protocol"
)

// AuditLog records what clients do, one JSON object to a line. [OpenAuditLog] opens one;
// close it after the Shutdown of its Server. Its methods may be called concurrently. Those
// of a nil *AuditLog do nothing.
type AuditLog struct {
	log *audit.Log
}

// OpenAuditLog opens the audit log at path for appending, or creates it with mode 0600. It
// refuses a symbolic link, and a file that others own or may read. The path "-" means
// standard error. If required is true, the server refuses what it cannot record; otherwise
// it counts the lost events in the log. The server reports failed writes to log; nil
// discards them.
func OpenAuditLog(path string, required bool, log *slog.Logger) (*AuditLog, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l, err := audit.Open(path, required, log)
	if err != nil {
		return nil, err
	}
	return &AuditLog{l}, nil
}

// Reopen opens the file at the same path again, after another program has renamed it.
// After an error the log continues in the previous file.
func (l *AuditLog) Reopen() error { return l.inner().Reopen() }

// Close writes the events that wait and a last one, "closed", and closes the file.
func (l *AuditLog) Close() { l.inner().Close() }

func (l *AuditLog) inner() *audit.Log {
	if l == nil {
		return nil
	}
	return l.log
}

// event returns an event about this connection.
func (c *connection) event(name string) audit.Event {
	e := audit.Event{Event: name, Remote: c.remote, Principal: c.principal.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		e.Session = c.session.ID
	}
	return e
}

// commit records an event before the server carries out the action. The error is for the
// client.
func (c *connection) commit(e audit.Event) error {
	if err := c.server.audit.Commit(e); err != nil {
		return protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return nil
}

// auditEntry records that the connection has a session.
func (c *connection) auditEntry(s *session.Session, p protocol.InitializeParams) {
	name := "session created"
	switch {
	case p.ResumeSessionID != nil:
		name = "session resumed"
	case p.ObserveSessionID != nil:
		name = "session observed"
	}
	e := c.event(name)
	e.Session = s.ID
	c.server.audit.Record(e)
}

// auditStart records a process that is about to start.
func (c *connection) auditStart(p protocol.StartParams, dir string) error {
	e := c.event("start")
	e.Process, e.Argv, e.Cwd, e.Sandbox = p.ProcessID, p.Argv, dir, "none"
	if p.Form == protocol.StartPrepared {
		e.Paths = []string{p.Program.String()}
	}
	switch {
	case c.principal.Grant.StartSandbox() != nil && p.Sandbox != nil:
		e.Sandbox = "that of the credentials, and " + string(p.Sandbox)
	case c.principal.Grant.StartSandbox() != nil:
		e.Sandbox = "that of the credentials"
	case p.Sandbox != nil:
		e.Sandbox = string(p.Sandbox)
	}
	return c.commit(e)
}

// auditSignal records a signal to a process of a session.
func (c *connection) auditSignal(of *session.Session, id, signal string) {
	e := c.event("signal")
	e.Session, e.Process, e.Signal = of.ID, id, signal
	c.server.audit.Record(e)
}

// auditChange records the files that are about to change.
func (c *connection) auditChange(method string, paths []string) error {
	e := c.event("change")
	e.Method, e.Paths = method, paths
	return c.commit(e)
}

// auditRequest records the target of an HTTP request, without parts that may be secret.
func (c *connection) auditRequest(method, url string) error {
	e := c.event("http request")
	e.Method = method
	if origin, err := httprequest.Origin(url); err == nil { // a URL without an origin is not requested
		e.Paths = []string{origin}
	}
	return c.commit(e)
}

// auditForward records a connection that the server is about to make for the client.
func (c *connection) auditForward(address string) error {
	e := c.event("tcp open")
	e.Method, e.Paths = protocol.MethodTCPOpen, []string{address}
	return c.commit(e)
}

// exited counts and records how a process ended.
func (s *Server) exited(of *session.Session, id string, exit protocol.ExitRecord) {
	s.counters.endings.Add(endingOf(exit))
	s.auditExit(of, id, exit)
}

// auditExit records how a process ended.
func (s *Server) auditExit(of *session.Session, id string, exit protocol.ExitRecord) {
	s.audit.Record(audit.Event{
		Event: "exit", Principal: of.Principal, Session: of.ID, Process: id,
		ExitCode: &exit.ExitCode, Signal: exit.Signal, EndedBy: string(exit.EndedBy),
	})
}

// auditRefusal records a client that was not admitted.
func (s *Server) auditRefusal(remote, reason string) {
	s.audit.Refused(audit.Event{Event: "authentication refused", Remote: remote, Reason: reason})
}
