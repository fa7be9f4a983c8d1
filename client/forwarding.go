package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"execserver/internal/forward"
	"execserver/internal/peer"
)

// Forwarding is a listener of this machine whose connections continue from the machine of
// an Environment. Environment.Listen makes one. Its methods may be called concurrently.
type Forwarding struct {
	env     *Environment
	l       net.Listener
	network string
	address string
	judge   peer.Judge

	ctx    context.Context // ends with the Forwarding
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when everything has ended
}

// Listen listens at the TCP address local of this machine, and continues each connection
// to an address as seen from the machine of the Environment, as [Environment.Forward] does.
// The host of local is localhost if it is empty; the port 0 chooses a free one, which Addr
// returns. Everybody who can connect to local reaches the far address: every user of this
// machine, with localhost. On Linux, processes of this machine that are confined cannot
// (docs/security.md), unless Options.AllowConfinedPeers is set.
//
// When the far address cannot be reached, the local connection is reset, and Options.Log
// says why. While the Environment reconnects, new connections wait for it. Listening ends
// with Close, with ctx, and with the Environment.
func (e *Environment) Listen(ctx context.Context, local, network, address string) (*Forwarding, error) {
	if _, err := e.farEnd(network, address); err != nil {
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

// Close ends the Forwarding and its connections, and waits for their goroutines. It
// returns nil, and may be called again.
func (f *Forwarding) Close() error {
	f.cancel(net.ErrClosed)
	<-f.done
	return nil
}

// Done returns a channel that is closed when the Forwarding has ended.
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
	var far net.Conn
	if err == nil {
		far, err = f.env.Forward(f.ctx, f.network, f.address)
	}
	if err != nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the other end learns that this is not an orderly end
		}
		f.env.opts.Log.Warn("cannot forward a connection", "from", conn.RemoteAddr(), "error", err)
		return
	}
	forward.Relay(f.ctx, conn, far.(*forwarded).Stream)
}

// admit decides whether the process at the other end of a connection may use it: a command in
// a sandbox must not get to what it cannot reach itself.
func (f *Forwarding) admit(conn net.Conn) error {
	if f.env.opts.AllowConfinedPeers {
		return nil
	}
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	found, here, err := f.judge.Find(local.AddrPort(), remote.AddrPort())
	switch {
	case peer.CanFindTCP() != nil:
		return nil // nobody can tell
	case err != nil || !here:
		return err
	}
	return f.judge.TCP(found)
}
