package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"execserver/internal/forward"
	"execserver/internal/peer"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// DialContext connects from the machine of the Environment to the address on the named network,
// "tcp" or "unix", like the method of net.Dialer. A "tcp" address is HOST:PORT with a numeric
// port; the machine resolves the host. A "unix" address is the path of a socket. ctx bounds only
// the attempt to connect. If nothing listens at the address, the error matches
// syscall.ECONNREFUSED.
//
// The net.Conn has deadlines and flow control, and implements CloseWrite() error like
// *net.TCPConn. Close still sends the data already written, for at most 10 seconds. If the other
// side resets the connection, errors match syscall.ECONNRESET. If the connection to the server
// breaks, Read and Write fail with an *InterruptedError.
//
// A server allows 128 of these connections for each client connection. It needs the
// capability tcpOpen (EXTENSIONS.md, "tcpOpen").
func (e *Environment) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := e.dial(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("forward a connection to %s: %w", address, err)
	}
	return conn, nil
}

func (e *Environment) dial(ctx context.Context, network, address string) (*forwarded, error) {
	params, err := e.target(network, address)
	switch {
	case err != nil:
		return nil, err
	case e.Err() != nil:
		return nil, e.Err()
	case !e.has(capTCPOpen):
		return nil, &UnsupportedError{"forward a connection", capTCPOpen}
	}
	if err := e.conns.permit(protocol.MethodTCPOpen); err != nil {
		return nil, err
	}
	conn, _, err := e.conns.current(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := e.tunnels.open(conn)
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
		err = e.conns.outcome(ctx, conn, protocol.MethodTCPOpen, err)
		if broken, ok := errors.AsType[*brokenError](err); ok {
			err = &InterruptedError{broken.cause}
		}
		return nil, err
	}
	return &forwarded{stream.Stream, endAddr{network, e.conns.name}, endAddr{network, address}}, nil
}

// target returns the params of tcp/open for an address, without the stream.
func (e *Environment) target(network, address string) (protocol.TCPOpenParams, error) {
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
		path := e.conns.machine.resolve(address)
		if path == "" {
			return p, errDirGone
		}
		p.Path = new(e.conns.machine.uri(path))
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

// tunnels are the forwarded connections of an Environment, which end with the connection over
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
func (t *tunnels) add(conn *rpc.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byConn == nil {
		t.byConn = make(map[*rpc.Conn]*forward.Streams)
	}
	streams := forward.New(conn.Wake, conn.SendsBinary)
	t.byConn[conn] = streams
	conn.SetSources(streams)
}

// notify handles a notification about the forwarded connections of a connection.
func (t *tunnels) notify(conn *rpc.Conn, method string, params json.RawMessage, data []byte) error {
	t.mu.Lock()
	streams := t.byConn[conn]
	t.mu.Unlock()
	if streams == nil {
		return nil // the connection has ended
	}
	_, err := streams.Notify(method, params, data)
	return err
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
	return &InterruptedError{cause}
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

// Forwarding is a local listener whose connections are forwarded through the machine of an
// Environment. Environment.Forward returns one. Its methods may be called concurrently.
type Forwarding struct {
	env     *Environment
	l       net.Listener
	network string
	address string
	judge   peer.Checker

	ctx    context.Context // ends with the Forwarding
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when everything has ended
}

// Forward listens on the local TCP address, and forwards each connection to the address on the
// named network, as [Environment.DialContext] connects to it: like ssh -L. If the host of local
// is empty, it is localhost. With port 0, the system chooses a port, which Addr returns.
//
// Everyone who can connect to local reaches the remote address; on localhost, that is every local
// user. On Linux, Forward refuses local processes in sandboxes and containers, unless
// Options.AllowConfinedPeers is set (docs/security.md).
//
// If the remote address cannot be reached, Forward resets the local connection and logs the
// reason to Options.Log. While the Environment reconnects, new connections wait. The listener
// and its connections are closed by Close, when ctx is done, or when the Environment ends.
//
// The server needs the capability tcpOpen (EXTENSIONS.md, "tcpOpen").
func (e *Environment) Forward(ctx context.Context, local, network, address string) (*Forwarding, error) {
	if _, err := e.target(network, address); err != nil {
		return nil, fmt.Errorf("forward connections to %s: %w", address, err)
	}
	if !e.has(capTCPOpen) {
		return nil, &UnsupportedError{"forward connections", capTCPOpen}
	}
	host, port, err := net.SplitHostPort(local)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", local, err)
	}
	if host == "" {
		host = "localhost"
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	f := &Forwarding{env: e, l: l, network: network, address: address, done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	if !e.run(f.serve) {
		f.cancel(nil)
		_ = l.Close()
		return nil, e.Err()
	}
	return f, nil
}

// Addr returns the local address.
func (f *Forwarding) Addr() net.Addr { return f.l.Addr() }

// Close closes the listener and its connections, and returns when their goroutines have ended.
// It returns nil, and may be called again.
func (f *Forwarding) Close() error {
	f.cancel(net.ErrClosed)
	<-f.done
	return nil
}

// Done returns a channel that is closed when the listener and all its connections are closed.
func (f *Forwarding) Done() <-chan struct{} { return f.done }

// serve accepts connections until the Forwarding ends.
func (f *Forwarding) serve() {
	defer close(f.done)
	defer f.cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		select {
		case <-f.ctx.Done():
		case <-f.env.done:
			f.cancel(f.env.Err())
		}
		_ = f.l.Close()
	})
	for {
		conn, err := f.l.Accept()
		switch {
		case err == nil:
			wg.Go(func() { f.forward(conn) })
		case errors.Is(err, net.ErrClosed):
			return
		default: // too many descriptors are open, for example
			f.env.opts.Log.Warn("cannot accept a connection to forward", "address", f.Addr(), "error", err)
			select {
			case <-time.After(acceptPause):
			case <-f.ctx.Done():
			}
		}
	}
}

// acceptPause is the pause after an Accept that failed.
const acceptPause = 100 * time.Millisecond

// forward continues one connection.
func (f *Forwarding) forward(conn net.Conn) {
	defer conn.Close()
	err := f.admit(conn)
	var remote net.Conn
	if err == nil {
		remote, err = f.env.DialContext(f.ctx, f.network, f.address)
	}
	if err != nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the other end learns that this is not an orderly end
		}
		f.env.opts.Log.Warn("cannot forward a connection", "from", conn.RemoteAddr(), "error", err)
		return
	}
	forward.Relay(f.ctx, conn, remote.(*forwarded).Stream)
}

// admit decides whether the process at the other end of a connection may use it: a command in
// a sandbox must not get to what it cannot reach itself.
func (f *Forwarding) admit(conn net.Conn) error {
	if f.env.opts.AllowConfinedPeers {
		return nil
	}
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	found, here, err := f.judge.FindPeer(local.AddrPort(), remote.AddrPort())
	switch {
	case peer.CanFindTCP() != nil:
		return nil // this system cannot tell
	case err != nil || !here:
		return err
	}
	_, err = f.judge.CheckTCP(found)
	return err
}
