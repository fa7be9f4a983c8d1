package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"execserver/internal/auth"
	"execserver/internal/filesystem"
	"execserver/internal/forward"
	"execserver/internal/quota"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
	"execserver/transport"
)

// phase is the state of a connection's handshake (PROTOCOL.md, "Handshake").
type phase int

const (
	phaseNew     phase = iota
	phaseGreeted       // initialize was answered
	phaseReady         // initialized was received
)

// connection serves one connection. It is the rpc.Handler and the peer of its session.
// Only the reader uses phase and observing.
type connection struct {
	server    *Server
	log       *slog.Logger // names the remote end
	rpc       *rpc.Conn
	http      *httpRequests
	tcp       *forward.Streams
	forwards  atomic.Int64 // streams of tcp, with those that are over and have not ended yet
	resumable bool
	principal *auth.Principal
	early     transport.Limited // bounds the bytes before initialize; nil if nothing does
	handshake *handshake        // nil if nothing bounds its time
	counted   bool              // counted among those with one; guarded by server.mu
	remote    string
	phase     phase
	client    string                      // its name; set before the session knows the connection
	asks      protocol.ClientCapabilities // set before the session knows the connection
	observing bool                        // an observer, which does not own its session

	confined *quota.Semaphore // of its helpers
	changes  changes
	handles  filesystem.Handles
	missing  *filesystem.MissingWatch

	// The reader sets session and outbox once, under mu. The reader and the handlers that
	// it starts afterwards read them without mu, everybody else with it. They are nil for
	// a connection that asked for no session.
	mu       sync.Mutex
	session  *session.Session
	outbox   *session.Outbox
	left     bool                     // the connection has ended
	watching map[string]*subscription // watches whose events this connection gets

	lastRecording string // that was read; guarded by mu
}

// finishTimeout is how long the requests before the end of input may take, on stdio and on
// unix sockets.
const finishTimeout = 10 * time.Second

// newConnection returns a connection for a stream.
func newConnection(s *Server, stream transport.Conn, principal *auth.Principal, resumable bool) *connection {
	c := &connection{server: s, log: s.log.With("remote", stream.Remote()), principal: principal, remote: stream.Remote(), resumable: resumable}
	if principal.Name != "" {
		c.log = c.log.With("principal", principal.Name)
	}
	c.confined = quota.NewSemaphore(maxConfinedShare)
	c.handles.Durable, c.handles.Admit = s.opts.DurableWrites, c.takeHandle
	c.missing = filesystem.NewMissingWatch(c.missingChanged)
	c.rpc = rpc.New(stream, c, &rpc.Options{
		Log:             c.log,
		MaxMessageBytes: s.opts.MaxMessageBytes,
		PingInterval:    s.opts.PingInterval,
		ProbeTimeout:    s.opts.ProbeTimeout,
		FinishTimeout:   finishTimeout,
	})
	c.http = newHTTPRequests(&s.opts, c.rpc.Wake, c.checkReach)
	c.tcp = forward.New(c.rpc.Wake, c.rpc.SendsBinary)
	return c
}

func notImplemented(r *rpc.Request) error {
	return protocol.Errorf(protocol.CodeMethodNotFound, "exec-server stub does not implement `%s` yet", r.Method)
}

// Request implements rpc.Handler.
func (c *connection) Request(r *rpc.Request) {
	serve, ok := methods[r.Method]
	c.server.counters.request(r.Method)
	c.logRequest(r)
	if !ok {
		r.Fail(notImplemented(r))
		return
	}
	if c.phase == phaseReady {
		if err := c.mayCallHere(r.Method); err != nil {
			r.Fail(err)
			return
		}
	}
	if err := c.mayCall(r.Method); err != nil {
		c.refused(r, err)
		return
	}
	serve(c, r)
}

// refused answers a request that the client's credentials do not allow.
func (c *connection) refused(r *rpc.Request, err error) {
	c.server.refusals.counts.Add(RefusedScope)
	c.log.Warn("request refused", "method", r.Method, "reason", err)
	e := c.event("refusal")
	e.Method, e.Reason = r.Method, err.Error()
	c.server.audit.Record(e)
	r.Fail(err)
}

// Notification implements rpc.Handler.
func (c *connection) Notification(method string, params json.RawMessage, data []byte) error {
	if ours, err := c.tcp.Notify(method, params, data); ours {
		return err
	}
	if data != nil {
		return fmt.Errorf("notification `%s` has no data for a binary message", method)
	}
	switch method {
	case protocol.MethodInitialized:
		return c.initialized()
	case protocol.MethodAck:
		return c.ack(params)
	case protocol.MethodHTTPCancel:
		return c.cancelHTTP(params)
	}
	return fmt.Errorf("unknown notification `%s`", method)
}

// initialized serves the notification initialized.
func (c *connection) initialized() error {
	switch c.phase {
	case phaseNew:
		return fmt.Errorf("`initialized` was sent before `initialize`")
	case phaseGreeted:
		c.phase = phaseReady
	}
	return nil
}

// checkHandshake refuses a method that the handshake does not allow yet.
func (c *connection) checkHandshake(family string) error {
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

// initialize serves the method initialize. It runs on the reader, because nothing else of
// the connection may be served before the answer.
func (c *connection) initialize(r *rpc.Request) {
	p, err := protocol.DecodeParams[protocol.InitializeParams](r.Params)
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
		c.server.refusals.counts.Add(refusalOf(p))
		r.Fail(err)
		return
	}
	if g := c.principal.Grant; g != nil && g.MaxSession > 0 && p.ObserveSessionID == nil && p.ResumeSessionID == nil {
		c.server.sessions.EndAfter(s, g.MaxSession)
	}
	c.phase = phaseGreeted
	if c.early != nil {
		c.early.LimitTotal(0)
	}
	c.endHandshake()
	c.server.countInitialized(c)
	if c.asks.BinaryFrames {
		c.rpc.AcceptBinary()
		if c.asks.Compress {
			c.rpc.AcceptCompressed()
		}
	}
	info := c.info()
	result := protocol.InitializeResult{ProtocolVersion: protocol.Version, SessionID: protocol.NoSession, EnvironmentInfo: &info}
	if s == nil {
		r.Reply(result)
		return
	}
	c.observing = p.ObserveSessionID != nil
	c.log.Info("session attached", "sessionId", s.ID, "clientName", p.ClientName,
		"resumed", p.ResumeSessionID != nil, "observing", c.observing)
	c.auditEntry(s, p)
	result.SessionID = s.ID
	r.Reply(result)
	if c.asks.BinaryFrames {
		c.rpc.SendBinary() // after the answer
		if c.asks.Compress {
			c.rpc.SendCompressed()
		}
	}
	c.enter(s, outbox)
	if p.ResumeSessionID != nil {
		// Processes may have waited since before the connection existed.
		c.rpc.WantAck()
	}
}

// attach gives the connection its session: a new one, unless the client names one, or none
// if it asks for none.
func (c *connection) attach(p protocol.InitializeParams) (*session.Session, *session.Outbox, error) {
	c.client, c.asks = p.ClientName, p.Capabilities
	c.asks.BinaryFrames = c.asks.BinaryFrames && c.rpc.CarriesBinary()
	none := p.ObserveSessionID != nil && *p.ObserveSessionID == protocol.NoSession
	switch {
	case none: // bounded like new sessions
	case p.ObserveSessionID != nil:
		if err := c.server.mayObserve(c); err != nil {
			return nil, nil, c.tooMany(err)
		}
		return c.server.sessions.Observe(*p.ObserveSessionID, c, c.principal.Grant.Observes())
	case p.ResumeSessionID != nil:
		return c.server.sessions.Resume(*p.ResumeSessionID, c)
	}
	if err := c.server.reserve(c); err != nil {
		return nil, nil, c.tooMany(err)
	}
	if none {
		return nil, nil, nil
	}
	s, outbox, err := c.server.sessions.Create(c)
	if err != nil {
		c.server.uncount(c)
	}
	return s, outbox, err
}

// refusalOf says why the server gave no session to a client that asked for it so.
func refusalOf(p protocol.InitializeParams) RefusalReason {
	named := p.ObserveSessionID != nil && *p.ObserveSessionID != protocol.NoSession
	if named || p.ResumeSessionID != nil {
		return RefusedSession
	}
	return RefusedLimit
}

// tooMany logs and returns the error for one connection too many.
func (c *connection) tooMany(err error) error {
	c.server.refusals.record(c.remote, err.Error())
	return protocol.Errorf(protocol.CodeInvalidRequest, "%s", err)
}

// enter binds the connection to its session, whose events it sends from now on.
func (c *connection) enter(s *session.Session, outbox *session.Outbox) {
	c.mu.Lock()
	c.session, c.outbox = s, outbox
	left := c.left
	c.mu.Unlock()
	if left {
		c.leave()
		return
	}
	c.rpc.SetSources(outbox, c.http, c.tcp)
}

// leave leaves the session when the connection has ended.
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

// silent reports whether a connection ended because the peer fell silent: it did not
// answer pings, its system did not answer, or it was unreachable. Such a peer has not
// closed the connection, and may not know yet that it has ended.
func silent(cause error) bool {
	for _, err := range []error{rpc.ErrSilent, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(cause, err) {
			return true
		}
	}
	return false
}

// release closes the files of a connection that has ended. It may take time on a file
// system that does not answer.
func (c *connection) release() {
	c.missing.Close()
	c.handles.Close()
}

// Name implements session.Peer.
func (c *connection) Name() string { return c.client }

// Asks implements session.Peer.
func (c *connection) Asks() protocol.ClientCapabilities { return c.asks }

// Credentials implements session.Peer.
func (c *connection) Credentials() session.Credentials {
	authenticator, principal := c.server.auth, c.principal
	return session.Credentials{
		Principal: principal.Name, QuotaKey: principal.QuotaKey(), Rights: principal.Rights(),
		Stand: func() bool { return authenticator.Stands(principal) },
	}
}

// Writer implements session.Peer.
func (c *connection) Writer() session.Writer { return c.rpc }

// Probe implements session.Peer.
func (c *connection) Probe() bool { return c.rpc.Probe(c.rpc.Context()) }

// TakenOver implements session.Peer.
func (c *connection) TakenOver(sessionID string, byObserver bool) {
	err := rpc.ErrTakenOver
	if byObserver {
		err = errObserverTookOver
		// A connection that cannot send this any more ends all the same.
		_ = c.rpc.Notify(protocol.NotificationTakenOver, protocol.TakenOverParams{SessionID: sessionID})
	}
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: err.Error()}, err)
}

// shutDown tells the client that its session has ended with the server, and closes the
// connection. Without that the client would try to come back.
func (c *connection) shutDown() {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s != nil {
		// A connection that cannot send this any more ends all the same.
		_ = c.rpc.Notify(protocol.NotificationSessionEnded, protocol.SessionEndedParams{SessionID: s.ID})
	}
	c.rpc.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "server is shutting down"}, ErrClosed)
}

// Left implements session.Peer.
func (c *connection) Left(reason string) {
	if c.server.closing() {
		return // Shutdown tells every client
	}
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: reason}, errors.New(reason))
}

// limitError says that a limit of the server is reached.
type limitError struct {
	what  string
	limit int
}

func (e *limitError) Error() string {
	return fmt.Sprintf("the server has its limit of %d %s", e.limit, e.what)
}

// refuseStream refuses a peer with an error and closes its stream.
func refuseStream(stream transport.Conn, err error) {
	text := protocol.AppendErrorResponse(nil, protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
	_ = stream.Write(text)
	_ = stream.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()})
}
