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
	httpServer := &http.Server{
		Handler:        handler,
		MaxHeaderBytes: maxHeaderBytes,
		ConnState:      s.pending.connState(s.refusals), // and their time
		ErrorLog:       log.New(httpLog{s.refusals}, "", 0),
	}
	httpServer.SetKeepAlivesEnabled(false) // one request; a refused client must connect again
	err := httpServer.Serve(patient{l, s.log})
	_ = httpServer.Close() // connections that are not upgraded yet
	return s.serveError(err)
}

// ServeUnix serves connections of a unix socket, one message to a line, to the users that
// Options.Peers admits. It closes l when it returns. It returns ErrClosed after Shutdown.
func (s *Server) ServeUnix(l net.Listener) error {
	if err := s.track(l); err != nil {
		return err
	}
	defer s.untrack(l)
	s.admission.warnOfPeers(l)
	for {
		conn, err := patient{l, s.log}.Accept()
		if err != nil {
			return s.serveError(err)
		}
		go s.serveUnix(conn) // ends with the connection, for which Shutdown waits
	}
}

func (s *Server) serveUnix(conn net.Conn) {
	stream := transport.NewUnix(conn, s.opts.MaxMessageBytes)
	if principal := s.admission.admitUnix(conn, stream); principal != nil {
		_ = s.serveAdmitted(stream, principal) // which logs how the connection ends
	}
}

// serveAdmitted serves an admitted client of a listener.
func (s *Server) serveAdmitted(conn transport.Conn, principal *auth.Principal) error {
	if s.ext.Relay != nil {
		return s.ext.Relay(conn)
	}
	return s.serve(conn, principal, true)
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
