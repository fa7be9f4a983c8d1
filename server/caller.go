package server

import (
	"errors"
	"log/slog"
	"sync"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/httprequest"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// caller is the client of one connection, as the handlers of its requests see it: its
// credentials and its session. Its methods decide what the client may do (permission.go), and
// record what it does.
type caller struct {
	server    *Server
	log       *slog.Logger // names the remote end
	principal *auth.Principal
	remote    string
	resumable bool // another connection can resume the session

	// The reader sets session and outbox once, under mu. The reader and the handlers that
	// it starts afterwards read them without mu; other goroutines need mu. They are nil
	// for a connection that asked for no session.
	mu      sync.Mutex
	session *session.Session
	outbox  *session.Outbox

	observing bool // the client does not own its session; used by the reader alone

	changes session.Changes // of files, by the connection
}

// credentials returns the credentials by which a session recognizes its owner.
func (c *caller) credentials() session.Credentials {
	authenticator, principal := c.server.auth, c.principal
	return session.Credentials{
		Principal: principal.Name, QuotaKey: principal.QuotaKey(), Rights: principal.Rights(),
		Valid: func() bool { return authenticator.SessionValid(principal) },
	}
}

// attached returns the session of the connection and its outbox there. Any goroutine may
// call it.
func (c *caller) attached() (*session.Session, *session.Outbox) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, c.outbox
}

// fail answers a request with an error. If the credentials do not allow the request, fail
// also counts, logs and records that.
func (c *caller) fail(r *rpc.Request, err error) {
	if denied, ok := errors.AsType[*deniedError](err); ok {
		err = protocol.Errorf(protocol.CodeInvalidRequest, "%s", denied)
		c.server.refusals.counts.Add(RefusedScope)
		c.log.Warn("request refused", "method", r.Method, "reason", err)
		e := c.event("refusal")
		e.Method, e.Reason = r.Method, err.Error()
		c.server.audit.Record(e)
	}
	r.Fail(err)
}

// leases returns nil if the client may have a lease on its session, and otherwise an error.
func (c *caller) leases() error {
	switch {
	case !c.resumable:
		return protocol.Errorf(protocol.CodeInvalidRequest, "lease refused: the sessions of this connection end with it")
	case c.server.sessions.Lifetime().MaxKeepMs == 0:
		return protocol.Errorf(protocol.CodeInvalidRequest, "leases are not allowed here; the server's operator can allow them")
	}
	return nil
}

// noSession is the error of a request that needs a session of the connection.
func noSession(request string) error {
	return protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this connection has no session; "+
		"connect again for a session of its own, or to observe one", request)
}

// reply answers a request with a result, or with an error unless that is nil.
func reply(r *rpc.Request, result any, err error) {
	if err != nil {
		r.Fail(err)
		return
	}
	r.Reply(result)
}

// event returns an event about the connection. Any goroutine may call it.
func (c *caller) event(name string) audit.Event {
	e := audit.Event{Event: name, Remote: c.remote, Principal: c.principal.Name}
	if s, _ := c.attached(); s != nil {
		e.Session = s.ID
	}
	return e
}

// commit records an event before the server carries out the action. The error is for the
// client.
func (c *caller) commit(e audit.Event) error {
	if err := c.server.audit.Commit(e); err != nil {
		return protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return nil
}

// auditAttached records that the connection has a session.
func (c *caller) auditAttached(s *session.Session, p protocol.InitializeParams) {
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

// auditClosed records the end of the connection. It is a function of its own because the record is
// large, and the stack from which it is called waits for that end.
func (c *caller) auditClosed(err error) {
	e := c.event("connection closed")
	e.Reason = err.Error()
	c.server.audit.Record(e)
}

// auditStart records a process that is about to start.
func (c *caller) auditStart(p protocol.StartParams, dir string) error {
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
func (c *caller) auditSignal(of *session.Session, id, signal string) {
	e := c.event("signal")
	e.Session, e.Process, e.Signal = of.ID, id, signal
	c.server.audit.Record(e)
}

// auditChange records the files that are about to change.
func (c *caller) auditChange(method string, paths []string) error {
	e := c.event("change")
	e.Method, e.Paths = method, paths
	return c.commit(e)
}

// auditRequest records the target of an HTTP request, without parts that may be secret.
func (c *caller) auditRequest(method, url string) error {
	e := c.event("http request")
	e.Method = method
	if origin, err := httprequest.Origin(url); err == nil { // a URL without an origin is not requested
		e.Paths = []string{origin}
	}
	return c.commit(e)
}

// auditForward records a connection that the server is about to make for the client.
func (c *caller) auditForward(address string) error {
	e := c.event("tcp open")
	e.Method, e.Paths = protocol.MethodTCPOpen, []string{address}
	return c.commit(e)
}
