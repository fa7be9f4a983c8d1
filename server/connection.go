package server

import (
	"encoding/json"
	"fmt"
	"sync"

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
// session; phase is the reader's own.
type connection struct {
	server    *Server
	rpc       *rpc.Conn
	resumable bool
	phase     phase

	mu      sync.Mutex
	session *session.Session
	outbox  *session.Outbox
	left    bool // the connection has ended
}

// Request implements rpc.Handler.
func (c *connection) Request(r *rpc.Request) {
	serve, ok := methods[r.Method]
	if !ok {
		r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "exec-server stub does not implement `%s` yet", r.Method))
		return
	}
	serve(c, r)
}

// Notification implements rpc.Handler.
func (c *connection) Notification(method string, _ json.RawMessage) error {
	if method != protocol.MethodInitialized {
		return fmt.Errorf("unknown notification `%s`", method)
	}
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
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", rpc.ErrTakenOver)
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
	var s *session.Session
	var outbox *session.Outbox
	if p.ResumeSessionID == nil {
		s, outbox, err = c.server.sessions.Create(c)
	} else {
		s, outbox, err = c.server.sessions.Resume(*p.ResumeSessionID, c)
	}
	if err != nil {
		r.Fail(err)
		return
	}
	c.phase = phaseGreeted
	c.server.log.Info("session attached", "session", s.ID, "client", p.ClientName, "resumed", p.ResumeSessionID != nil)
	info := c.server.environmentInfo()
	r.Reply(protocol.InitializeResult{
		ProtocolVersion: protocol.Version,
		SessionID:       s.ID,
		EnvironmentInfo: &info,
	})
	c.enter(s, outbox)
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
	c.rpc.SetSource(outbox)
}

// leave lets go of the session when the connection has ended.
func (c *connection) leave() {
	c.mu.Lock()
	c.left = true
	s, outbox := c.session, c.outbox
	c.mu.Unlock()
	switch {
	case s == nil:
	case c.resumable:
		c.server.sessions.Detach(s, outbox)
	default:
		c.server.sessions.End(s, "its connection ended")
	}
}

// Wake implements session.Peer.
func (c *connection) Wake() { c.rpc.Wake() }

// WantAck implements session.Peer.
func (c *connection) WantAck() { c.rpc.WantAck() }

// Probe implements session.Peer.
func (c *connection) Probe() bool { return c.rpc.Probe(c.rpc.Context()) }

// TakenOver implements session.Peer.
func (c *connection) TakenOver() {
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: rpc.ErrTakenOver.Error()}, rpc.ErrTakenOver)
}

// limitError says that a limit of the server is reached.
type limitError struct {
	what  string
	limit int
}

func (e *limitError) Error() string {
	return fmt.Sprintf("the server has its limit of %d %s; raise it with --max-%s", e.limit, e.what, e.what)
}

// refuse tells a peer that it is not served.
func (c *connection) refuse(stream transport.Conn, err error) {
	text := protocol.AppendErrorResponse(nil, protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
	_ = stream.Write(text)
	_ = stream.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()})
}
