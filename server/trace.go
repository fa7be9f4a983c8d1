package server

import (
	"execserver/internal/rpc"
	"execserver/protocol"
)

// TracedRequest is a request that carries a trace context.
type TracedRequest struct {
	Method    string
	Context   protocol.TraceContext // as the client wrote it
	SessionID string                // "" before the connection has a session
	Remote    string                // the other end of the connection, for people
}

// trace tells Options.Trace of a request that carries a trace context.
func (c *connection) trace(r *rpc.Request) {
	trace := c.server.opts.Trace
	if trace == nil || r.Trace.Parent == "" {
		return
	}
	method := r.Method
	if _, known := methods[method]; !known {
		method = unknownMethod // spans have few names, too
	}
	traced := TracedRequest{Method: method, Context: r.Trace, Remote: c.remote}
	if c.session != nil {
		traced.SessionID = c.session.ID
	}
	r.Then(trace(traced))
}
