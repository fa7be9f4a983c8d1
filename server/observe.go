package server

import (
	"encoding/json"
	"errors"
	"fmt"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// sessionless are the methods that a connection without a session may call: those about
// the machine and about sessions that they name (PROTOCOL.md, "Listing sessions").
var sessionless = map[string]bool{
	protocol.MethodInitialize:        true, // which refuses by itself
	protocol.MethodEnvironmentInfo:   true,
	protocol.MethodEnvironmentStatus: true,
	protocol.MethodSessions:          true,
	protocol.MethodList:              true, // of all sessions
	protocol.MethodUsage:             true, // the same
	protocol.MethodRecordings:        true,
	protocol.MethodReadRecording:     true,
	protocol.MethodWebLink:           true,
	protocol.MethodRead:              true, // in a session that the request names
	protocol.MethodSnapshot:          true, // the same
	protocol.MethodScreen:            true, // the same
	protocol.MethodSignal:            true, // in a session that the request names
	protocol.MethodTerminate:         true, // the same
	protocol.MethodEndSession:        true,
}

// mayCallHere decides about a method by the session of the connection, after the handshake.
func (c *connection) mayCallHere(method string) error {
	switch {
	case c.session == nil && !sessionless[method]:
		return c.noSession(method)
	case c.observing && !protocol.ForObservers(method) && method != protocol.MethodInitialize: // which refuses by itself
		return protocol.Errorf(protocol.CodeInvalidRequest,
			"`%s` is refused: this connection observes session %s; call `%s` first to own it",
			method, c.session.ID, protocol.MethodTakeOver)
	}
	return nil
}

// noSession refuses what needs a session of the connection.
func (c *connection) noSession(request string) error {
	return protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this connection has no session; "+
		"connect again for a session of its own, or to observe one", request)
}

// errObserverTookOver is the cause when an observer has become the owner.
var errObserverTookOver = errors.New("session has been taken over by an observer")

// takeOver serves session/takeOver. It runs on the reader, so that the client's next
// message is already the owner's.
func (c *connection) takeOver(r *rpc.Request, _ protocol.NoParams) {
	if err := c.server.sessions.TakeOver(c.outbox); err != nil {
		r.Fail(err)
		return
	}
	c.observing = false
	c.server.audit.Record(c.event("session taken over"))
	r.Reply(protocol.Empty{})
}

// ack serves the notification process/ack.
func (c *connection) ack(params json.RawMessage) error {
	switch {
	case c.phase == phaseNew:
		return fmt.Errorf("`%s` was sent before `initialize`", protocol.MethodAck)
	case !c.asks.ProcessAck:
		return fmt.Errorf("`%s` was sent without asking for processAck in `initialize`", protocol.MethodAck)
	}
	p, err := protocol.DecodeParams[protocol.AckParams](params)
	if err != nil {
		return fmt.Errorf("`%s`: %w", protocol.MethodAck, err)
	}
	if c.outbox != nil {
		c.outbox.Ack(p)
	}
	return nil
}
