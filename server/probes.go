package server

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"execserver/internal/auth"
	"execserver/internal/quota"
	"execserver/internal/sandbox"
)

// Ready returns why the server would refuse a new client or its starts now, or nil. It
// checks what concerns every client: the limits of connections and sessions, an audit log
// that is required, a sandbox that is required, and free descriptors. "/readyz" answers
// with its text.
func (s *Server) Ready() error {
	if s.closing() {
		return errors.New("the server is shutting down")
	}
	if s.quotas.connections.Check(quota.Everybody) != nil {
		return fmt.Errorf("the server has its limit of %d connections", s.opts.MaxConnections)
	}
	if s.sessions.Full() {
		return errors.New("the server has its limit of sessions, and none is idle")
	}
	if s.sandbox != nil && s.sandbox.Mode() == sandbox.ModeRequire {
		if means, _ := s.sandbox.Means(); means == sandbox.MeansNone {
			return errors.New("the server requires sandboxes, and this machine has none")
		}
	}
	if gateway := s.opts.Internal.Gateway; gateway != nil {
		if err := gateway.Ready(); err != nil {
			return err
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return errors.New("the server can open no file")
	}
	_ = null.Close()
	if err := s.audit.Ready(); err != nil {
		return errors.New("the audit log, which is required, cannot be written")
	}
	return nil
}

// serveHealthz says that the server runs.
func (s *Server) serveHealthz(w http.ResponseWriter, r *http.Request) {
	if allowsGet(w, r) {
		w.WriteHeader(http.StatusOK)
	}
}

// serveReadyz says whether the server would serve a new client.
func (s *Server) serveReadyz(w http.ResponseWriter, r *http.Request) {
	if !allowsGet(w, r) {
		return
	}
	if err := s.Ready(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	w.WriteHeader(http.StatusOK)
}

// allowsGet answers a request with another method than GET or HEAD, and reports whether
// it has one of these.
func allowsGet(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET,HEAD")
	w.WriteHeader(http.StatusMethodNotAllowed)
	return false
}

// metricsOn returns the function that serves metrics to clients that may see what all
// sessions do, or nil if nothing makes them.
func (s *Server) metricsOn(made func(*Server) http.Handler) http.HandlerFunc {
	if made == nil {
		return nil
	}
	metrics := made(s)
	return func(w http.ResponseWriter, r *http.Request) {
		if !allowsGet(w, r) {
			return
		}
		principal := s.admit(w, r)
		if principal == nil {
			return
		}
		if !principal.Grant.Allows(auth.Observe) {
			text := "these credentials do not allow metrics; they need the scope observe or full"
			s.refusals.add(RefusedScope, r.RemoteAddr, text)
			s.auditRefusal(r.RemoteAddr, text)
			refuse(w, http.StatusForbidden, text)
			return
		}
		if s.opts.Internal.Gateway != nil && !principal.Grant.Everywhere() {
			refuse(w, http.StatusForbidden, "these credentials are for an account or for machines; metrics are about all")
			return
		}
		metrics.ServeHTTP(w, r)
	}
}

// ServeMetrics serves what metrics makes at "/metrics" of l, to clients that may see what
// all sessions do, and the probes "/readyz" and "/healthz". Nothing else is served there.
// It closes l when it returns. It returns ErrClosed after Shutdown.
func (s *Server) ServeMetrics(l net.Listener, metrics func(*Server) http.Handler) error {
	return s.serveHTTP(l, s.handler(map[string]http.HandlerFunc{
		"/readyz": s.serveReadyz, "/healthz": s.serveHealthz, "/metrics": s.metricsOn(metrics),
	}, nil))
}
