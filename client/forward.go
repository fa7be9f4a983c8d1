package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"execserver/internal/forward"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// Forward connects to an address as seen from the machine of the Environment, and returns
// the connection: to "localhost:3000" with the network "tcp", or to a socket's path with
// the network "unix". ctx bounds the connecting, not the connection. If nobody listens
// there, the error matches syscall.ECONNREFUSED.
//
// The connection is like one of this machine: its deadlines work, a reader that does not
// read makes the other side wait, and it has a method CloseWrite() error, which ends one
// direction. Close sends what was written, for which the other side has 10 seconds. When
// the other side has reset the connection, errors match syscall.ECONNRESET. It ends with
// the connection to the server, and is not resumed: Read and Write then fail with a
// *DisconnectedError.
//
// The error is an *UnsupportedError if the server does not forward connections. It allows
// 128 at the same time (PROTOCOL.md, "Forwarded connections").
func (e *Environment) Forward(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := e.forward(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("forward a connection to %s: %w", address, err)
	}
	return conn, nil
}

func (e *Environment) forward(ctx context.Context, network, address string) (*forwarded, error) {
	params, err := e.farEnd(network, address)
	switch {
	case err != nil:
		return nil, err
	case e.Err() != nil:
		return nil, e.Err()
	case !e.has(capTCPOpen):
		return nil, &UnsupportedError{"forward a connection", capTCPOpen}
	}
	if err := e.link.permit(protocol.MethodTCPOpen); err != nil {
		return nil, err
	}
	conn, _, err := e.link.current(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := e.link.tunnels.open(conn)
	if err != nil {
		return nil, err
	}
	params.StreamID = stream.id
	var result protocol.TCPOpenResult
	raw, err := conn.Call(ctx, protocol.MethodTCPOpen, params)
	if err == nil {
		err = understand(protocol.MethodTCPOpen, raw, &result)
	}
	if err == nil {
		if tooMuch := stream.Allow(result.Credit); tooMuch != nil {
			err = &answerError{protocol.MethodTCPOpen, tooMuch}
		}
	}
	if err != nil {
		switch {
		case ctx.Err() != nil:
			stream.Reset("nobody waits for the connection any more")
		case errors.As(err, new(*answerError)):
			stream.Reset("the answer cannot be understood")
		default:
			stream.Forget()
		}
		err = e.link.failed(ctx, conn, protocol.MethodTCPOpen, err)
		if broken, ok := errors.AsType[*brokenError](err); ok {
			err = &DisconnectedError{Cause: broken.cause}
		}
		return nil, err
	}
	return &forwarded{stream.Stream, endAddr{network, e.link.name}, endAddr{network, address}}, nil
}

// farEnd returns the params of tcp/open for an address, without the stream.
func (e *Environment) farEnd(network, address string) (protocol.TCPOpenParams, error) {
	p := protocol.TCPOpenParams{Credit: forward.Window}
	switch network {
	case "tcp":
		host, service, err := net.SplitHostPort(address)
		if err != nil {
			return p, err
		}
		port, err := strconv.ParseUint(service, 10, 16)
		if err != nil || port == 0 || host == "" {
			return p, errors.New("the address must be HOST:PORT, with a number from 1 to 65535")
		}
		p.Host, p.Port = &host, new(uint16(port))
	case "unix":
		path := e.link.machine.resolve(address)
		if path == "" {
			return p, errDirGone
		}
		p.Path = new(e.link.machine.uri(path))
	default:
		return p, net.UnknownNetworkError(network)
	}
	return p, nil
}

// forwarded is a forwarded connection.
type forwarded struct {
	*forward.Stream
	local, remote endAddr
}

var _ net.Conn = (*forwarded)(nil)

// LocalAddr implements net.Conn. The address names the server.
func (f *forwarded) LocalAddr() net.Addr { return f.local }

// RemoteAddr implements net.Conn.
func (f *forwarded) RemoteAddr() net.Addr { return f.remote }

// endAddr is the address of one end of a forwarded connection.
type endAddr struct{ network, address string }

func (a endAddr) Network() string { return a.network }
func (a endAddr) String() string  { return a.address }

// tunnels are the forwarded connections of a link, which end with the connection over
// which they were opened.
type tunnels struct {
	mu     sync.Mutex
	byConn map[*rpc.Conn]*forward.Streams
	lastID uint64
}

// tunnelStream is a stream with its id.
type tunnelStream struct {
	*forward.Stream
	id string
}

// add makes a connection ready to forward others.
func (t *tunnels) add(conn *rpc.Conn) *forward.Streams {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byConn == nil {
		t.byConn = make(map[*rpc.Conn]*forward.Streams)
	}
	streams := forward.New(conn.Wake, conn.SendsBinary)
	t.byConn[conn] = streams
	conn.SetSources(streams)
	return streams
}

// remove ends the forwarded connections of a connection that has ended.
func (t *tunnels) remove(conn *rpc.Conn) {
	t.mu.Lock()
	streams := t.byConn[conn]
	delete(t.byConn, conn)
	t.mu.Unlock()
	streams.Close(disconnected(conn))
}

func disconnected(conn *rpc.Conn) error {
	cause := context.Cause(conn.Context())
	if errors.Is(cause, ErrClosed) {
		return ErrClosed
	}
	return &DisconnectedError{Cause: cause}
}

// open adds a stream to a connection.
func (t *tunnels) open(conn *rpc.Conn) (tunnelStream, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	streams := t.byConn[conn]
	if streams == nil {
		return tunnelStream{}, disconnected(conn)
	}
	t.lastID++
	id := strconv.FormatUint(t.lastID, 10)
	stream, err := streams.Open(id)
	return tunnelStream{stream, id}, err
}
