package server

import (
	"encoding/json"
	"errors"
	"fmt"

	"execserver/protocol"
	"execserver/rpc"
)

// observable are the methods that an observer may call: those that change
// nothing (PROTOCOL.md, "Observing").
var observable = map[string]bool{
	protocol.MethodInitialize:        true, // which refuses by itself
	protocol.MethodEnvironmentInfo:   true,
	protocol.MethodEnvironmentStatus: true,
	protocol.MethodRead:              true,
	protocol.MethodReadBackground:    true,
	protocol.MethodWait:              true,
	protocol.MethodSnapshot:          true,
	protocol.MethodList:              true,
	protocol.MethodTakeOver:          true,
}

// errObserverTookOver is the cause when an observer has become the owner.
var errObserverTookOver = errors.New("session has been taken over by an observer")

// takeOver serves session/takeOver. It runs on the reader, so that what the
// client sends next is already the owner's.
func (c *connection) takeOver(r *rpc.Request, _ struct{}) {
	if err := c.server.sessions.TakeOver(c.outbox); err != nil {
		r.Fail(err)
		return
	}
	c.observing = false
	c.server.opts.Audit.Record(c.event("session taken over"))
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
	p, err := protocol.DecodeAck(params)
	if err != nil {
		return fmt.Errorf("`%s`: %w", protocol.MethodAck, err)
	}
	c.outbox.Ack(p)
	return nil
}
