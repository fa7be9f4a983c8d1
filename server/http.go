package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/protocol"
	"execserver/transport"
)

// maxHeaderBytes bounds the header of a request.
const maxHeaderBytes = 64 << 10

// Handler returns the handler of the WebSocket endpoint "/", of the probes "/readyz" and
// "/healthz", of "/metrics" if Options.Metrics serves it, and of the page (docs/security.md,
// "How a client gets in"). To serve them below another path, wrap it in http.StripPrefix. It
// checks Host, Origin, route, upgrade, authentication and peer in this order, on which clients
// rely.
func (s *Server) Handler() http.Handler {
	s.admission.overHTTP.Store(true)
	return s.endpoint()
}

func (s *Server) endpoint() http.Handler {
	paths := map[string]http.HandlerFunc{
		"/readyz": s.serveReadyz, "/healthz": s.serveHealthz, "/": s.serveUpgrade, "/metrics": s.metricsOn(s.opts.Metrics),
	}
	if s.ext.Gateway != nil {
		delete(paths, "/") // a gateway is not a machine itself
		if s.servesPage() {
			paths[linkPath] = s.serveLink
		}
	}
	return s.handler(paths, s.page())
}

// handler returns a handler that checks every request and then serves it by its path. A nil
// function serves nothing. page has the paths that only the page of this server may request.
func (s *Server) handler(paths, page map[string]http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w := &response{ResponseWriter: out}
		if err := s.admission.checkHost(r); err != nil {
			s.refusals.add(RefusedHost, r.RemoteAddr, err.Error())
			refuse(w, http.StatusForbidden, err.Error())
			return
		}
		serve, ofPage := paths[r.URL.Path], page[r.URL.Path]
		typed := r.Method == http.MethodGet && r.Header.Get("Upgrade") == "" && len(r.Header["Origin"]) == 0
		if r.URL.Path == "/" && typed && page[webPath] != nil {
			serve, ofPage = nil, page[webPath] // a person has typed the address of the server
		}
		allowed := s.admission.checkOrigin(r) || ofPage != nil && fromOwnPage(r)
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
		if gateway := s.ext.Gateway; gateway != nil && gateway.Serves(r.URL.Path) {
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
	if principal := s.admission.admit(w, r); principal != nil {
		s.upgrade(w, r, principal, nil)
	}
}

// refuseUpgrade refuses a request that is not a proper upgrade, and reports whether it did.
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
	_ = s.serveAdmitted(conn, principal, nil)
}

// serveGateway checks a request as serveUpgrade does before the gateway serves it.
func (s *Server) serveGateway(gateway extension.Gateway, w http.ResponseWriter, r *http.Request) {
	if gateway.Upgrades(r.URL.Path) && s.refuseUpgrade(w, r) {
		return
	}
	if principal := s.admission.admit(w, r); principal != nil {
		gateway.Serve(w, r, s.admitted(principal, r.RemoteAddr, nil))
	}
}

// serveHealthz reports that the server runs.
func (s *Server) serveHealthz(w http.ResponseWriter, r *http.Request) {
	if allowsGet(w, r) {
		w.WriteHeader(http.StatusOK)
	}
}

// serveReadyz reports whether the server would serve a new client.
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

// metricsOn returns a handler that serves metrics to clients that may observe all sessions,
// or nil if made is nil.
func (s *Server) metricsOn(made func(*Server) http.Handler) http.HandlerFunc {
	if made == nil {
		return nil
	}
	metrics := made(s)
	return func(w http.ResponseWriter, r *http.Request) {
		if !allowsGet(w, r) {
			return
		}
		principal := s.admission.admit(w, r)
		if principal == nil {
			return
		}
		if !principal.Grant.Allows(auth.Observe) {
			text := "these credentials do not allow metrics; they need the scope observe or full"
			s.refusals.add(RefusedScope, r.RemoteAddr, text)
			s.admission.auditRefusal(r.RemoteAddr, text)
			refuse(w, http.StatusForbidden, text)
			return
		}
		if s.ext.Gateway != nil && !principal.Grant.Everywhere() {
			refuse(w, http.StatusForbidden, "these credentials are for an account or for machines; metrics are about all")
			return
		}
		metrics.ServeHTTP(w, r)
	}
}

// ServeMetrics serves the handler that metrics returns at "/metrics" of l, to clients that
// may observe all sessions, and the probes "/readyz" and "/healthz". It serves nothing else.
// It closes l when it returns. It returns ErrClosed after Shutdown.
func (s *Server) ServeMetrics(l net.Listener, metrics func(*Server) http.Handler) error {
	return s.serveHTTP(l, s.handler(map[string]http.HandlerFunc{
		"/readyz": s.serveReadyz, "/healthz": s.serveHealthz, "/metrics": s.metricsOn(metrics),
	}, nil))
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// admitted describes the principal of a request for a gateway.
func (s *Server) admitted(p *auth.Principal, remote string, signedOut <-chan struct{}) *extension.Admitted {
	return &extension.Admitted{Principal: p, Remote: remote, Auth: s.auth, Audit: s.audit, SignedOut: signedOut}
}

// webPath is a path of the page that redirects to the page itself.
const webPath = "/web"

func (s *Server) servesPage() bool { return s.ext.Page != nil }

// page returns the handlers of the page, or nil without one.
func (s *Server) page() map[string]http.HandlerFunc {
	if !s.servesPage() {
		return nil
	}
	return s.ext.Page.Handlers(pageServer{s})
}

// linkPath is where clients request links from a gateway, which does not serve web/link
// itself. It is not a path of the page, so no browser is admitted to it.
const linkPath = "/web/link"

// serveLink serves web/link at a gateway.
func (s *Server) serveLink(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	principal := s.admission.admit(w, r)
	if principal == nil {
		return
	}
	path, life := s.ext.Page.Link(principal)
	s.log.Info("link to the page", "remote", r.RemoteAddr, "principal", principal.Name)
	s.audit.Record(audit.Event{Event: "link to the page", Remote: r.RemoteAddr, Principal: principal.Name})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(protocol.WebLinkResult{Path: path, LifeMs: uint64(life.Milliseconds())}) // the client may be gone
}

// pageServer implements extension.PageServer.
type pageServer struct{ s *Server }

func (ps pageServer) Holds(p *auth.Principal) bool {
	return ps.s.auth.Valid(p) && (p.Expires.IsZero() || time.Now().Before(p.Expires))
}

func (ps pageServer) Admit(w http.ResponseWriter, r *http.Request) *auth.Principal {
	if ps.s.auth == nil {
		ps.Refuse(w, r, "this server has no tokens")
		return nil
	}
	return ps.s.admission.admit(w, r)
}

func (ps pageServer) Refuse(w http.ResponseWriter, r *http.Request, reason string) {
	ps.s.admission.refuseCredentials(r, reason)
	refuse(w, http.StatusUnauthorized, reason)
}

func (ps pageServer) CheckPeer(w http.ResponseWriter, r *http.Request) bool {
	return !ps.s.admission.refusePeer(w, r)
}

func (ps pageServer) SignedIn(r *http.Request, p *auth.Principal) {
	ps.s.log.Info("browser signed in", "remote", r.RemoteAddr, "principal", p.Name)
	ps.s.audit.Record(audit.Event{Event: "browser signed in", Remote: r.RemoteAddr, Principal: p.Name})
}

func (ps pageServer) CheckUpgrade(w http.ResponseWriter, r *http.Request) bool {
	return !ps.s.refuseUpgrade(w, r)
}

func (ps pageServer) Serve(w http.ResponseWriter, r *http.Request, p *auth.Principal, signedOut <-chan struct{}) {
	if u := unixOf(r); u != nil && u.principal != nil && u.principal.Name != p.Name {
		ps.Refuse(w, r, "this browser is signed in as "+p.Name+", and the connection is that of "+u.principal.Name)
		return
	}
	if ps.CheckPeer(w, r) {
		ps.s.upgrade(w, r, p, signedOut)
	}
}

func (ps pageServer) IsGateway() bool { return ps.s.ext.Gateway != nil }

func (ps pageServer) ServeGateway(w http.ResponseWriter, r *http.Request, p *auth.Principal, signedOut <-chan struct{}) {
	if !ps.CheckPeer(w, r) {
		return
	}
	gateway, own := ps.s.ext.Gateway, *p // own is a copy, so that Recheck can tell this request by its address
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-signedOut:
			cancel()
			gateway.Recheck(func(other *auth.Principal) bool { return other != &own })
		case <-ctx.Done():
		}
	}()
	gateway.Serve(w, r.WithContext(ctx), ps.s.admitted(&own, r.RemoteAddr, signedOut))
}
