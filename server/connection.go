package server

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"execserver/filesystem"
	"execserver/internal/auth"
	"execserver/protocol"
	"execserver/rpc"
	"execserver/session"
	"execserver/transport"
)

// phase is how far the handshake of a connection is (PROTOCOL.md, "Handshake").
type phase int

const (
	phaseNew     phase = iota
	phaseGreeted       // initialize was answered
	phaseReady         // initialized was received
)

// connection serves one connection. It is the rpc.Handler, and the peer of its
// session; phase and observing are the reader's own.
type connection struct {
	server    *Server
	log       *slog.Logger // names the remote end
	rpc       *rpc.Conn
	http      *httpRequests
	resumable bool
	principal *auth.Principal
	early     transport.Limited // bounds what comes before initialize; nil: nothing does
	greeting  *time.Timer       // ends the connection without one
	queued    *list.Element     // among those without a session; guarded by server.mu
	seated    bool              // among those with one; guarded by server.mu
	remote    string
	phase     phase
	asks      protocol.ClientCapabilities // set before the session knows the connection
	observing bool                        // it does not own its session

	confined chan struct{} // a place for each of its helpers in a sandbox
	changes  changes
	handles  filesystem.Handles
	opening  opening
	missing  *filesystem.MissingWatch

	mu       sync.Mutex
	session  *session.Session
	outbox   *session.Outbox
	left     bool                     // the connection has ended
	watching map[string]*subscription // watches whose events this connection gets
}

// drainTimeout is how long the requests before the end of input have to finish,
// on stdio and on unix sockets.
const drainTimeout = 10 * time.Second

// newConnection makes what serves a stream.
func newConnection(s *Server, stream transport.Conn, principal *auth.Principal, resumable bool) *connection {
	c := &connection{server: s, log: s.log.With("remote", stream.Remote()), principal: principal, remote: stream.Remote(), resumable: resumable}
	if principal.Name != "" {
		c.log = c.log.With("principal", principal.Name)
	}
	c.confined = make(chan struct{}, maxConfinedShare)
	c.handles.Durable = s.opts.DurableWrites
	c.missing = filesystem.NewMissingWatch(c.missingChanged)
	c.rpc = rpc.New(stream, c, &rpc.Options{
		Log:          c.log,
		PingInterval: s.opts.PingInterval,
		ProbeTimeout: s.opts.ProbeTimeout,
		DrainTimeout: drainTimeout,
	})
	c.http = newHTTPRequests(&s.opts, c.rpc.Wake)
	return c
}

// Request implements rpc.Handler.
func (c *connection) Request(r *rpc.Request) {
	serve, ok := methods[r.Method]
	if !ok {
		r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "exec-server stub does not implement `%s` yet", r.Method))
		return
	}
	if c.observing && c.phase == phaseReady && !observable[r.Method] {
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest,
			"`%s` is refused: this connection observes session %s; call `%s` first to own it",
			r.Method, c.session.ID, protocol.MethodTakeOver))
		return
	}
	if err := c.mayCall(r.Method); err != nil {
		c.refused(r, err)
		return
	}
	serve(c, r)
}

// refused answers a request that the client's credentials do not allow.
func (c *connection) refused(r *rpc.Request, err error) {
	c.log.Warn("request refused", "method", r.Method, "reason", err)
	e := c.event("refusal")
	e.Method, e.Reason = r.Method, err.Error()
	c.server.opts.Audit.Record(e)
	r.Fail(err)
}

// Notification implements rpc.Handler.
func (c *connection) Notification(method string, params json.RawMessage) error {
	switch method {
	case protocol.MethodInitialized:
		return c.initialized()
	case protocol.MethodAck:
		return c.ack(params)
	}
	return fmt.Errorf("unknown notification `%s`", method)
}

// initialized serves the notification of this name.
func (c *connection) initialized() error {
	switch c.phase {
	case phaseNew:
		return fmt.Errorf("`initialized` was sent before `initialize`")
	case phaseGreeted:
		c.phase = phaseReady
	}
	return nil
}

// gate refuses a method that the handshake does not allow yet.
func (c *connection) gate(family string) error {
	switch c.phase {
	case phaseNew:
		return protocol.Errorf(protocol.CodeInvalidRequest, "client must call initialize before using %s methods", family)
	case phaseGreeted:
		return protocol.Errorf(protocol.CodeInvalidRequest, "client must send initialized before using %s methods", family)
	}
	if c.rpc.Context().Err() != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", context.Cause(c.rpc.Context()))
	}
	return nil
}

// initialize serves the method of this name. It runs on the reader: nothing
// else of the connection may be served before it is answered.
func (c *connection) initialize(r *rpc.Request) {
	p, err := protocol.DecodeInitialize(r.Params)
	if err == nil && c.phase != phaseNew {
		err = protocol.Errorf(protocol.CodeInvalidRequest, "initialize may only be sent once per connection")
	}
	if err != nil {
		r.Fail(err)
		return
	}
	if err := c.mayEnter(p); err != nil {
		c.refused(r, err)
		return
	}
	s, outbox, err := c.attach(p)
	if err != nil {
		r.Fail(err)
		return
	}
	if g := c.principal.Grant; g != nil && g.MaxSession > 0 && p.ObserveSessionID == nil && p.ResumeSessionID == nil {
		c.server.sessions.EndAfter(s, g.MaxSession)
	}
	c.phase = phaseGreeted
	c.greeted()
	c.observing = p.ObserveSessionID != nil
	c.log.Info("session attached", "session", s.ID, "client", p.ClientName,
		"resumed", p.ResumeSessionID != nil, "observing", c.observing)
	c.auditEntry(s, p)
	info := c.info()
	r.Reply(protocol.InitializeResult{
		ProtocolVersion: protocol.Version,
		SessionID:       s.ID,
		EnvironmentInfo: &info,
	})
	c.enter(s, outbox)
	if p.ResumeSessionID != nil {
		// Processes have waited since before there was anybody to ask.
		c.rpc.WantAck()
	}
}

// attach makes the connection that of a session, a new one unless the client names
// one.
func (c *connection) attach(p protocol.Initialize) (*session.Session, *session.Outbox, error) {
	c.asks = p.Capabilities
	switch {
	case p.ObserveSessionID != nil:
		return c.server.sessions.Observe(*p.ObserveSessionID, c, c.principal.Grant.Observes())
	case p.ResumeSessionID != nil:
		return c.server.sessions.Resume(*p.ResumeSessionID, c)
	}
	if err := c.server.reserve(c); err != nil {
		c.server.penalties.logRefusal(c.remote, err.Error())
		return nil, nil, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err)
	}
	s, outbox, err := c.server.sessions.Create(c)
	if err != nil {
		c.server.stand(c)
	}
	return s, outbox, err
}

// enter binds the connection to its session, whose events flow from now on.
func (c *connection) enter(s *session.Session, outbox *session.Outbox) {
	c.mu.Lock()
	c.session, c.outbox = s, outbox
	left := c.left
	c.mu.Unlock()
	if left {
		c.leave()
		return
	}
	c.rpc.SetSource(&events{outbox: outbox, http: c.http})
}

// leave lets go of the session when the connection has ended.
func (c *connection) leave() {
	c.mu.Lock()
	c.left = true
	s, outbox := c.session, c.outbox
	c.mu.Unlock()
	if s != nil {
		c.server.sessions.Leave(s, outbox, c.departure())
	}
}

// departure says how the connection has ended.
func (c *connection) departure() session.Departure {
	switch {
	case !c.resumable:
		return session.Final
	case c.rpc.Farewell():
		return session.Farewell
	case silent(context.Cause(c.rpc.Context())):
		return session.Silent
	}
	return session.Lost
}

// silent reports whether a connection ended because nothing came from the peer
// any more: it answered no pings, or its system did not, or nobody could reach it.
// Such a peer has not closed the connection, and may not know yet that it has
// ended.
func silent(cause error) bool {
	for _, err := range []error{rpc.ErrSilent, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(cause, err) {
			return true
		}
	}
	return false
}

// release gives up the files that belong to a connection which has ended. On a
// file system that does not answer it takes its time.
func (c *connection) release() {
	c.missing.Close()
	c.handles.Close()
}

// Asks implements session.Peer.
func (c *connection) Asks() protocol.ClientCapabilities { return c.asks }

// Credentials implements session.Peer.
func (c *connection) Credentials() session.Credentials {
	authenticator, principal := c.server.opts.Auth, c.principal
	return session.Credentials{
		Principal: principal.Name, Rights: principal.Rights(), Stand: func() bool { return authenticator.Stands(principal) },
	}
}

// Wake implements session.Peer.
func (c *connection) Wake() { c.rpc.Wake() }

// WantAck implements session.Peer.
func (c *connection) WantAck() { c.rpc.WantAck() }

// Probe implements session.Peer.
func (c *connection) Probe() bool { return c.rpc.Probe(c.rpc.Context()) }

// TakenOver implements session.Peer.
func (c *connection) TakenOver(sessionID string, byObserver bool) {
	err := rpc.ErrTakenOver
	if byObserver {
		err = errObserverTookOver
		// A connection that cannot take it any more is ended all the same.
		_ = c.rpc.Notify(protocol.NotificationTakenOver, protocol.TakenOver{SessionID: sessionID})
	}
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: err.Error()}, err)
}

// Left implements session.Peer.
func (c *connection) Left(reason string) {
	if c.server.closing() {
		return // Shutdown says so to everybody
	}
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: reason}, errors.New(reason))
}

// limitError says that a limit of the server is reached.
type limitError struct {
	what  string
	limit int
}

func (e *limitError) Error() string {
	return fmt.Sprintf("the server has its limit of %d %s; raise it with --max-%s", e.limit, e.what, e.what)
}

// refuseStream tells a peer that it is not served.
func refuseStream(stream transport.Conn, err error) {
	text := protocol.AppendErrorResponse(nil, protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
	_ = stream.Write(text)
	_ = stream.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()})
}
