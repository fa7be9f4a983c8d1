package server

import (
	"fmt"

	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
	"execserver/transport"
)

// phase is the state of a handshake (PROTOCOL.md, "Handshake").
type phase int

const (
	phaseNew      phase = iota
	phaseAnswered       // initialize was answered
	phaseReady          // initialized was received
)

// handshake is the state of a connection's handshake. Only the reader uses it, except for
// client and capabilities, which do not change after the session has received the connection.
type handshake struct {
	phase        phase
	client       string                      // the name of the client
	capabilities protocol.ClientCapabilities // requested by the client
	limited      transport.Limited           // bounds the bytes before initialize; nil without a bound
	pending      *pendingConnection          // bounds the time before initialize; nil without a bound
}

// beginHandshake bounds the bytes and the time of a connection until its client has sent
// initialize, on transports that strangers can reach.
func (c *connection) beginHandshake(stream transport.Conn) {
	limited, ok := stream.(transport.Limited)
	if !ok || !c.resumable {
		return
	}
	limited.LimitTotal(maxHandshakeBytes)
	c.handshake.limited = limited
	drop := func(err error) {
		c.server.refusals.counts.Add(RefusedHandshake)
		if err == errTooManyPending {
			c.rpc.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()}, err)
			return
		}
		c.end(err)
	}
	if c.handshake.pending != nil {
		c.handshake.pending.pass(drop)
		return
	}
	c.handshake.pending = c.server.pending.begin(c.principal.Name+" "+sourceOf(c.remote), drop)
}

// finish stops the timer, because the client has sent initialize or the connection has ended.
func (h *handshake) finish() {
	if h.pending != nil {
		h.pending.done()
	}
}

// initialize serves the method initialize. It runs on the reader, because no other request
// may be served before the answer.
func (c *connection) initialize(r *rpc.Request) {
	p, err := protocol.DecodeParams[protocol.InitializeParams](r.Params)
	if err == nil && c.handshake.phase != phaseNew {
		err = protocol.Errorf(protocol.CodeInvalidRequest, "initialize may only be sent once per connection")
	}
	if err == nil {
		err = c.permitSession(p)
	}
	if err != nil {
		c.fail(r, err)
		return
	}
	s, outbox, err := c.attach(p)
	if err != nil {
		c.server.refusals.counts.Add(attachRefusal(p))
		r.Fail(err)
		return
	}
	if g := c.principal.Grant; g != nil && g.MaxSession > 0 && p.ObserveSessionID == nil && p.ResumeSessionID == nil {
		c.server.sessions.EndAfter(s, g.MaxSession)
	}
	c.handshake.phase = phaseAnswered
	if c.handshake.limited != nil {
		c.handshake.limited.LimitTotal(0)
	}
	c.handshake.finish()
	c.server.countInitialized(c)
	requested := c.handshake.capabilities
	if requested.BinaryFrames {
		c.rpc.AcceptBinary()
		if requested.Compress {
			c.rpc.AcceptCompressed()
		}
	}
	info := c.environment.describe()
	result := protocol.InitializeResult{ProtocolVersion: protocol.Version, SessionID: protocol.NoSession, EnvironmentInfo: &info}
	if s == nil {
		r.Reply(result)
		return
	}
	c.observing = p.ObserveSessionID != nil
	c.log.Info("session attached", "sessionId", s.ID, "clientName", p.ClientName,
		"resumed", p.ResumeSessionID != nil, "observing", c.observing)
	c.auditAttached(s, p)
	result.SessionID = s.ID
	r.Reply(result)
	if requested.BinaryFrames {
		c.rpc.SendBinary() // after the answer
		if requested.Compress {
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
	c.handshake.client, c.handshake.capabilities = p.ClientName, p.Capabilities
	c.handshake.capabilities.BinaryFrames = p.Capabilities.BinaryFrames && c.rpc.CarriesBinary()
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

// attachRefusal returns the reason for the counters when the server gives a client no
// session.
func attachRefusal(p protocol.InitializeParams) RefusalReason {
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

// initialized serves the notification initialized.
func (h *handshake) initialized() error {
	switch h.phase {
	case phaseNew:
		return fmt.Errorf("`initialized` was sent before `initialize`")
	case phaseAnswered:
		h.phase = phaseReady
	}
	return nil
}
