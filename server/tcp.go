package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"execserver/internal/forward"
	"execserver/internal/peer"
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

// tcpOpen serves tcp/open (PROTOCOL.md, "Forwarded connections").
func (c *connection) tcpOpen(r *rpc.Request, p protocol.TCPOpenParams) {
	network, address, err := farEnd(p)
	if err == nil {
		err = c.mayReach(network)
	}
	if err == nil {
		err = c.takeForward()
	}
	if err != nil {
		c.failForward(r, err)
		return
	}
	stream, err := c.tcp.Open(p.StreamID)
	if err != nil {
		c.giveForward()
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
		return
	}
	_ = stream.Allow(p.Credit) // decoding has bounded it, and there is no other yet
	r.Go(func() {
		defer c.giveForward()
		conn, err := c.reach(stream, network, address)
		if err != nil {
			stream.Forget() // before the client receives the answer and may try again
			c.failForward(r, err)
			return
		}
		r.Reply(protocol.TCPOpenResult{Credit: forward.Window})
		forward.Relay(r.Context(), conn, stream)
	})
}

// failForward answers a request for a connection that was not made.
func (c *connection) failForward(r *rpc.Request, err error) {
	if refused, ok := errors.AsType[*deniedError](err); ok {
		c.refused(r, protocol.Errorf(protocol.CodeInvalidRequest, "%s", refused))
		return
	}
	r.Fail(err)
}

// farEnd returns where the client wants to connect to.
func farEnd(p protocol.TCPOpenParams) (network, address string, err error) {
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
func (c *connection) reach(stream *forward.Stream, network, address string) (net.Conn, error) {
	if err := c.auditForward(address); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stream.OnFail(cancel)
	timed, stop := context.WithTimeoutCause(ctx, forwardTimeout, fmt.Errorf("no answer within %s", forwardTimeout))
	defer stop()
	dialer := net.Dialer{ControlContext: c.checkReach}
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

// deniedError says that the credentials do not allow a connection.
type deniedError struct{ what string }

func (e *deniedError) Error() string {
	return "these credentials do not allow a connection to " + e.what
}

// mayReach refuses unix sockets to a client whose credentials force a sandbox: the server
// would open the socket outside of it.
func (c *connection) mayReach(network string) error {
	if g := c.principal.Grant; g != nil && g.Sandbox != nil && network == "unix" {
		return &deniedError{"a unix socket"}
	}
	return nil
}

// checkReach is the Control of a dialer. It refuses the addresses of this machine to a
// client whose credentials force a sandbox. Other servers, such as another exec-server,
// would take the connection for one of this server's user, while they recognize one that
// a confined command makes.
func (c *connection) checkReach(_ context.Context, _, address string, _ syscall.RawConn) error {
	if g := c.principal.Grant; g == nil || g.Sandbox == nil {
		return nil
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil || c.server.endsHere(to.Addr().Unmap()) {
		return &deniedError{address + ", an address of the server's machine"}
	}
	return nil
}

// endsHere reports whether a connection to an address ends on this machine, or may. The
// kernel decides that by its routes, which may name more addresses than interfaces have.
func (s *Server) endsHere(a netip.Addr) bool {
	if a.IsUnspecified() || s.judge.Addresses.Has(a, netip.Addr{}) {
		return true
	}
	local, err := peer.IsLocal(a)
	return local || err != nil && !errors.Is(err, peer.ErrUnsupported)
}
