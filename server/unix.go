package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"execserver/internal/auth"
	"execserver/transport"
)

// ServeUnix serves connections of a unix socket to the users that Options.Peers admits. What a
// client sends first decides what the connection speaks (docs/operations.md, "What a unix socket
// speaks"): one message to a line, the same over a stream that survives its connections, or HTTP with
// everything that Handler serves. The user at the other end is the credential for all, and
// Options.Auth is for none. ServeUnix closes l when it returns. It returns ErrClosed after Shutdown.
func (s *Server) ServeUnix(l net.Listener) error {
	if err := s.track(l); err != nil {
		return err
	}
	defer s.untrack(l)
	s.admission.warnOfPeers(l)
	web := &unixHTTP{address: l.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
	httpServer := s.httpServer(s.endpoint())
	httpServer.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateHijacked || state == http.StateClosed {
			conn.(*unixConn).pending.done()
		}
	}
	httpServer.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, unixKey{}, conn)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = httpServer.Serve(web) // until it is closed
	}()
	defer func() {
		_ = httpServer.Close()
		<-ended
	}()
	for {
		conn, err := patient{l, s.log}.Accept()
		if err != nil {
			return s.serveError(err)
		}
		if !s.begin() {
			_ = conn.Close()
			continue // the listener is closed
		}
		go func() { // Shutdown waits for it
			defer s.wg.Done()
			s.serveUnix(conn, web)
		}()
	}
}

// begin counts a goroutine for which Shutdown waits, unless that was called.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown {
		return false
	}
	s.wg.Add(1)
	return true
}

// unixConn is a connection of a unix socket.
type unixConn struct {
	net.Conn
	first     []byte // read already
	principal *auth.Principal
	refusal   error // nil if there is a principal
	pending   *pendingConnection
}

// refusedPause is how long a peer that may not connect has to show in which form it expects the
// answer.
const refusedPause = time.Second

// serveUnix serves a connection by its first byte.
func (s *Server) serveUnix(conn net.Conn, web *unixHTTP) {
	u := &unixConn{Conn: conn}
	u.principal, u.refusal = s.admission.admitUnix(conn)
	source := "refused"
	if u.principal != nil {
		source = u.principal.Name
	}
	u.pending = s.pending.begin(source+" "+unixRemote, func(error) {
		s.refusals.counts.Add(RefusedHandshake)
		_ = conn.Close()
	})
	proceed := context.AfterFunc(s.admission.closing, func() { _ = conn.Close() })
	if u.refusal != nil {
		_ = conn.SetReadDeadline(time.Now().Add(refusedPause))
	}
	first := make([]byte, 1)
	_, err := io.ReadFull(conn, first)
	switch {
	case err == nil:
		u.first = first
	case u.refusal == nil:
		proceed()
		u.pending.done()
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	if err == nil && first[0] == beginsStream {
		s.serveStreamLink(u, proceed)
		return
	}
	proceed()
	if err == nil && beginsHTTP(first[0]) {
		web.serve(u)
		return
	}
	stream := transport.NewLines(unixRemote, u, conn, conn.Close, s.opts.MaxMessageBytes)
	if u.refusal != nil {
		u.pending.done()
		refuseStream(stream, u.refusal)
		return
	}
	_ = s.serveAdmitted(stream, u.principal, u.pending) // which logs how the connection ends
}

// beginsStream is the first byte of a link of a stream. Nothing else begins with it: frames of binary
// messages, which do, come after initialize.
const beginsStream = 0

// beginsHTTP reports whether a byte is the first one of a method of HTTP: GET, HEAD, POST, PUT,
// PATCH, DELETE, OPTIONS, CONNECT or TRACE. None of them begins a JSON object.
func beginsHTTP(b byte) bool { return strings.IndexByte("GHPDOCT", b) >= 0 }

// Read reads what was read already, and then from the socket. When the peer closes the socket
// without reading everything, the system reports "connection reset" instead of the end of the
// stream, after everything that the peer has written.
func (u *unixConn) Read(b []byte) (int, error) {
	if len(u.first) > 0 && len(b) > 0 {
		n := copy(b, u.first)
		u.first = u.first[n:]
		return n, nil
	}
	n, err := u.Conn.Read(b)
	if errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return n, err
}

// unixRemote is the remote end of every unix socket, which has no address.
const unixRemote = "unix socket"

// RemoteAddr returns the Remote of a connection that speaks lines.
func (u *unixConn) RemoteAddr() net.Addr { return unixAddr{} }

type unixAddr struct{}

func (unixAddr) Network() string { return "unix" }
func (unixAddr) String() string  { return unixRemote }

// unixKey is the key of a *unixConn in the context of its request.
type unixKey struct{}

// unixOf returns the connection of a request that came over a unix socket, or nil.
func unixOf(r *http.Request) *unixConn {
	u, _ := r.Context().Value(unixKey{}).(*unixConn)
	return u
}

// unixHTTP is a listener of the connections that speak HTTP.
type unixHTTP struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
}

// serve passes a connection on.
func (l *unixHTTP) serve(u *unixConn) {
	select {
	case l.conns <- u:
	case <-l.closed:
		u.pending.done()
		_ = u.Close()
	}
}

func (l *unixHTTP) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close is called once, by the http.Server.
func (l *unixHTTP) Close() error {
	close(l.closed)
	return nil
}

func (l *unixHTTP) Addr() net.Addr { return l.address }

// admitUnix returns the principal of a connection of a unix socket, or why it is refused, which it
// records.
func (a *admission) admitUnix(conn net.Conn) (*auth.Principal, error) {
	principal, err := (*auth.Peers)(a.opts.Peers).Authenticate(conn)
	if err == nil && !a.opts.AllowConfinedPeers {
		err = a.judge.CheckUnix(conn)
	}
	if err == nil {
		return principal, nil
	}
	err = a.addPeersHint(err)
	source := unixRemote
	if refused, ok := errors.AsType[*auth.PeerRefusedError](err); ok {
		source = fmt.Sprintf("uid:%d", refused.UID)
	}
	a.refusals.add(RefusedPeer, source, err.Error())
	a.auditRefusal(unixRemote, err.Error())
	return nil, err
}
