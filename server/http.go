package server

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"execserver/internal/auth"
	"execserver/transport"
)

// maxHeaderBytes bounds the header of a request.
const maxHeaderBytes = 64 << 10

// Handler returns the handler of the WebSocket endpoint "/", of the probes "/readyz" and
// "/healthz", of "/metrics" if Options.Metrics serves it, and of the page (PROTOCOL.md,
// "HTTP endpoints"). To serve them below another path, wrap it in http.StripPrefix. It checks
// Host, Origin, route, upgrade, authentication and peer in this order, on which clients
// rely.
func (s *Server) Handler() http.Handler {
	s.overHTTP.Store(true)
	paths := map[string]http.HandlerFunc{
		"/readyz": s.serveReadyz, "/healthz": s.serveHealthz, "/": s.serveUpgrade, "/metrics": s.metricsOn(s.opts.Metrics),
	}
	if s.opts.Internal.Gateway != nil {
		delete(paths, "/") // a gateway is no machine itself
		if s.servesPage() {
			paths[linkPath] = s.serveLink
		}
	}
	return s.handler(paths, s.page())
}

// handler returns a handler that makes the checks that every request needs, and serves
// these paths. A nil function serves nothing. page are the paths that the page of this
// server may request.
func (s *Server) handler(paths, page map[string]http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.checkHost(r); err != nil {
			s.refusals.add(RefusedHost, r.RemoteAddr, err.Error())
			refuse(w, http.StatusForbidden, err.Error())
			return
		}
		serve, ofPage := paths[r.URL.Path], page[r.URL.Path]
		typed := r.Method == http.MethodGet && r.Header.Get("Upgrade") == "" && len(r.Header["Origin"]) == 0
		if r.URL.Path == "/" && typed && page[webPath] != nil {
			serve, ofPage = nil, page[webPath] // a person has typed the address of the server
		}
		allowed := s.checkOrigin(r) || ofPage != nil && fromOwnPage(r)
		if !allowed || fetchedElsewhere(r) && (ofPage == nil || !navigates(r)) {
			s.refusals.add(RefusedOrigin, r.RemoteAddr, "the server does not allow its origin")
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if serve != nil {
			serve(w, r)
			return
		}
		if ofPage != nil {
			ofPage(w, r)
			return
		}
		if gateway := s.opts.Internal.Gateway; gateway != nil && gateway.Serves(r.URL.Path) {
			s.serveGateway(gateway, w, r)
			return
		} else if gateway != nil {
			refuse(w, http.StatusNotFound, "this is a gateway, whose machines are at /env/NAME, and any of them at /any")
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})
}

func (s *Server) serveUpgrade(w http.ResponseWriter, r *http.Request) {
	if s.refuseUpgrade(w, r) {
		return
	}
	if principal := s.admit(w, r); principal != nil {
		s.upgrade(w, r, principal, nil)
	}
}

// refuseUpgrade refuses a request that is no proper upgrade, and reports whether it did.
func (s *Server) refuseUpgrade(w http.ResponseWriter, r *http.Request) bool {
	status, text := transport.CheckUpgrade(r)
	if status == 0 {
		return false
	}
	s.refusals.counts.Add(RefusedUpgrade)
	refuse(w, status, text)
	return true
}

// upgrade serves the WebSocket connection of a principal, whose upgrade request is correct,
// until it ends, or until signedOut is closed.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, principal *auth.Principal, signedOut <-chan struct{}) {
	conn, err := transport.Upgrade(w, r, s.opts.MaxMessageBytes)
	if err != nil {
		s.refusals.add(RefusedUpgrade, r.RemoteAddr, err.Error())
		return
	}
	over := make(chan struct{})
	defer close(over)
	if signedOut != nil {
		go func() {
			select {
			case <-signedOut:
				_ = conn.Close(transport.Reason{Code: transport.CodePolicy, Text: "signed out"}) // serve notices
			case <-over:
			}
		}()
	}
	// serve logs how the connection ends.
	_ = s.serveAdmitted(conn, principal)
}

// admit authenticates a request. If the server does not admit its sender, it answers the
// request and returns nil.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) *auth.Principal {
	if s.admitsNobody {
		s.refusals.add(RefusedCredentials, r.RemoteAddr, errNoAuthenticator.Error())
		refuse(w, http.StatusForbidden, errNoAuthenticator.Error())
		return nil
	}
	principal, refusal := s.auth.Authenticate(r)
	if refusal != nil {
		s.authFailed(r, refusal.Error())
		refusal.ServeHTTP(w, r)
		return nil
	}
	// This costs much more than checking a token, so only a client with a valid one may
	// cause it.
	if s.refusePeer(w, r) {
		return nil
	}
	return principal
}

// authFailed counts and records that a request has wrong credentials, and delays the answer.
func (s *Server) authFailed(r *http.Request, reason string) {
	s.refusals.add(RefusedCredentials, r.RemoteAddr, reason)
	s.refusals.wait(r.Context())
	s.auditRefusal(r.RemoteAddr, reason)
}

// refusePeer refuses a request of a process that may not connect, and reports whether it
// did.
func (s *Server) refusePeer(w http.ResponseWriter, r *http.Request) bool {
	err := s.checkPeer(r)
	if err == nil {
		return false
	}
	err = s.hintAtPeers(err)
	s.refusals.add(RefusedPeer, r.RemoteAddr, err.Error())
	s.auditRefusal(r.RemoteAddr, err.Error())
	refuse(w, http.StatusForbidden, err.Error())
	return true
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// ServeWebSocket serves WebSocket connections of l, and closes l when it returns. It
// returns ErrClosed after Shutdown.
func (s *Server) ServeWebSocket(l net.Listener) error {
	if s.admitsNobody {
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
	s.warnOfPeers(l)
	httpServer := &http.Server{
		Handler:        handler,
		MaxHeaderBytes: maxHeaderBytes,
		ConnState:      s.boundRequests(), // and their time
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
	s.warnOfPeers(l)
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
	principal, err := (*auth.Peers)(s.opts.Peers).Authenticate(conn)
	if err == nil {
		err = s.checkUnixPeer(conn)
	}
	if err != nil {
		err = s.hintAtPeers(err)
		source := stream.Remote()
		if refused, ok := errors.AsType[*auth.PeerRefusedError](err); ok {
			source = fmt.Sprintf("uid:%d", refused.UID)
		}
		s.refusals.add(RefusedPeer, source, err.Error())
		s.auditRefusal(stream.Remote(), err.Error())
		refuseStream(stream, err)
		return
	}
	// serve logs how the connection ends.
	_ = s.serveAdmitted(stream, principal)
}

// serveAdmitted serves a connection of a listener, whose client may connect.
func (s *Server) serveAdmitted(conn transport.Conn, principal *auth.Principal) error {
	if s.opts.Internal.Relay != nil {
		return s.opts.Internal.Relay(conn)
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
