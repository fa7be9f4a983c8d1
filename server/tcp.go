package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"execserver/internal/forward"
	"execserver/internal/rpc"
	"execserver/internal/sys"
	"execserver/protocol"
)

// Bounds of the connections that the server makes for clients: of one client, of all, and
// the time to make one.
const (
	maxForwards    = 128
	maxAllForwards = 1024 // and never more than a quarter of the descriptors
	forwardTimeout = 10 * time.Second
)

// tcpHandler serves tcp/open. It has the forwarded connections of one client.
type tcpHandler struct {
	*caller
	streams *forward.Streams
	count   atomic.Int64 // of streams, with those that are over and have not ended yet
}

func newTCPHandler(of *caller, conn *rpc.Conn) *tcpHandler {
	return &tcpHandler{caller: of, streams: forward.New(conn.Wake, conn.SendsBinary)}
}

// close ends the forwarded connections.
func (h *tcpHandler) close(cause error) { h.streams.Close(cause) }

// open serves tcp/open (EXTENSIONS.md, "tcpOpen").
func (h *tcpHandler) open(r *rpc.Request, p protocol.TCPOpenParams) {
	network, address, err := target(p)
	if err == nil {
		err = h.permitNetwork(network)
	}
	if err == nil {
		err = h.reserve()
	}
	if err != nil {
		h.fail(r, err)
		return
	}
	stream, err := h.streams.Open(p.StreamID)
	if err != nil {
		h.release()
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
		return
	}
	_ = stream.Allow(p.Credit) // decoding has bounded it, and there is no other yet
	r.Go(func() {
		defer h.release()
		conn, err := h.reach(stream, network, address)
		if err != nil {
			stream.Forget() // before the client receives the answer and may try again
			h.fail(r, err)
			return
		}
		r.Reply(protocol.TCPOpenResult{Credit: forward.Window})
		forward.Relay(r.Context(), conn, stream)
	})
}

// target returns where the client wants to connect to.
func target(p protocol.TCPOpenParams) (network, address string, err error) {
	if p.Path == nil {
		return "tcp", net.JoinHostPort(*p.Host, strconv.Itoa(int(*p.Port))), nil
	}
	path, err := p.Path.OSPath()
	if err != nil {
		return "", "", protocol.Errorf(protocol.CodeInvalidRequest, "%s", err)
	}
	return "unix", path, nil
}

// reach connects to an address for the client, until that resets the stream.
func (h *tcpHandler) reach(stream *forward.Stream, network, address string) (net.Conn, error) {
	if err := h.auditForward(address); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stream.OnFail(cancel)
	timed, stop := context.WithTimeoutCause(ctx, forwardTimeout, fmt.Errorf("no answer within %s", forwardTimeout))
	defer stop()
	dialer := net.Dialer{ControlContext: h.permitAddress}
	conn, err := dialer.DialContext(timed, network, address)
	switch {
	case err == nil:
		return conn, nil
	case errors.As(err, new(*deniedError)):
		return nil, err
	case timed.Err() != nil:
		err = context.Cause(timed)
	}
	return nil, protocol.Errorf(protocol.CodeInternal, "cannot connect to %s: %s", address, forwardError(err))
}

// forwardError returns why a connection could not be made, without the address that was
// asked for.
func forwardError(err error) string {
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return sys.ErrorText(err)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err.Error()
	}
	return err.Error()
}

// reserve counts one more forwarded connection.
func (h *tcpHandler) reserve() error {
	if h.count.Add(1) > maxForwards {
		h.count.Add(-1)
		return protocol.Errorf(protocol.CodeInvalidRequest,
			"this connection has its limit of %d forwarded connections; close one", maxForwards)
	}
	if refusal := h.server.quotas.forwards.Take(h.principal.QuotaKey()); refusal != nil {
		h.count.Add(-1)
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s; close one", refusal.Of("has", "forwarded connections"))
	}
	return nil
}

func (h *tcpHandler) release() {
	h.count.Add(-1)
	h.server.quotas.forwards.Release(h.principal.QuotaKey())
}
