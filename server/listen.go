package server

import (
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"execserver/internal/auth"
	"execserver/transport"
)

// ServeWebSocket serves WebSocket connections of l, and closes l when it returns. It
// returns ErrClosed after Shutdown.
func (s *Server) ServeWebSocket(l net.Listener) error {
	if s.admission.admitsNobody {
		_ = l.Close()
		return errNoAuthenticator
	}
	return s.serveHTTP(l, s.Handler())
}

// serveHTTP serves l until Shutdown.
func (s *Server) serveHTTP(l net.Listener, handler http.Handler) error {
	if err := s.track(l); err != nil {
		return err
	}
	defer s.untrack(l)
	s.admission.warnOfPeers(l)
	httpServer := s.httpServer(handler)
	httpServer.ConnState = s.pending.connState(s.refusals)
	err := httpServer.Serve(patient{l, s.log})
	_ = httpServer.Close() // connections that are not upgraded yet
	return s.serveError(err)
}

// httpServer returns an http.Server. Its ConnState must bound the time of a request.
func (s *Server) httpServer(handler http.Handler) *http.Server {
	h := &http.Server{Handler: handler, MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(httpLog{s.refusals}, "", 0)}
	h.SetKeepAlivesEnabled(false) // one request; a refused client must connect again
	return h
}

// serveAdmitted serves an admitted client of a listener. pending is that of its connection, or nil.
func (s *Server) serveAdmitted(conn transport.Conn, principal *auth.Principal, pending *pendingConnection) error {
	if s.ext.Relay != nil {
		if pending != nil {
			pending.done()
		}
		return s.ext.Relay(conn)
	}
	return s.serve(conn, principal, true, pending)
}

func (s *Server) serveError(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown {
		return ErrClosed
	}
	return err
}

func (s *Server) track(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown {
		_ = l.Close()
		return ErrClosed
	}
	s.listeners[l] = struct{}{}
	return nil
}

func (s *Server) untrack(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
	_ = l.Close()
}

// patient is a listener whose Accept retries after temporary errors: when the kernel is short
// of memory or descriptors, or when a filter refuses a peer.
type patient struct {
	net.Listener
	log *slog.Logger
}

// Accept waits for the next connection. It returns an error only when the listener is
// closed or broken.
func (l patient) Accept() (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := l.Listener.Accept()
		if err == nil || !transient(err) {
			return conn, err
		}
		l.log.Warn("cannot accept a connection", "error", err, "retryAfter", pause)
		time.Sleep(pause)
	}
}

// transient reports whether an error of Accept is temporary, so that the listener still works.
func transient(err error) bool {
	number, ok := errors.AsType[syscall.Errno](err)
	switch {
	case !ok, errors.Is(err, net.ErrClosed):
		return false
	case number == syscall.EBADF, number == syscall.EINVAL, number == syscall.ENOTSOCK:
		return false
	}
	return true
}
