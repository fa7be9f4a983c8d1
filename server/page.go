package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// Page is a page that shows a server to browsers (PROTOCOL.md, "web/link"). Its methods
// may be called concurrently.
type Page interface {
	// Link returns the path, with a fragment, at which one browser can sign in once to do
	// what the principal may do, and for how long that works.
	Link(principal *auth.Principal) (path string, life time.Duration)

	// Handlers returns what the page serves at which paths. Requests of its own origin
	// reach them.
	Handlers(door PageDoor) map[string]http.HandlerFunc
}

// PageDoor is what a Page needs of its server.
type PageDoor struct{ s *Server }

// Holds reports whether the credentials of a principal are still valid.
func (d PageDoor) Holds(p *auth.Principal) bool {
	return d.s.auth.Holds(p) && (p.Expires.IsZero() || time.Now().Before(p.Expires))
}

// Admit authenticates a request by the token that clients send. If the server does not
// admit its sender, it answers the request and returns nil. Without authentication it
// admits nobody: a link has to show that somebody may connect.
func (d PageDoor) Admit(w http.ResponseWriter, r *http.Request) *auth.Principal {
	if d.s.auth == nil {
		d.Refuse(w, r, "this server has no tokens")
		return nil
	}
	return d.s.admit(w, r)
}

// Refuse answers a request with wrong credentials.
func (d PageDoor) Refuse(w http.ResponseWriter, r *http.Request, reason string) {
	d.s.authFailed(r, reason)
	refuse(w, http.StatusUnauthorized, reason)
}

// CheckPeer reports whether the process that sends a request may connect. If not, it
// answers the request.
func (d PageDoor) CheckPeer(w http.ResponseWriter, r *http.Request) bool {
	return !d.s.refusePeer(w, r)
}

// SignedIn records that a browser can do now what a principal may do.
func (d PageDoor) SignedIn(r *http.Request, p *auth.Principal) {
	d.s.log.Info("browser signed in", "remote", r.RemoteAddr, "principal", p.Name)
	d.s.audit.Record(audit.Event{Event: "browser signed in", Remote: r.RemoteAddr, Principal: p.Name})
}

// CheckUpgrade reports whether a request asks properly for a WebSocket. If not, it answers
// the request.
func (d PageDoor) CheckUpgrade(w http.ResponseWriter, r *http.Request) bool {
	return !d.s.refuseUpgrade(w, r)
}

// Serve serves a WebSocket connection of a browser to a principal, until it ends, or until
// signedOut is closed. The request has passed CheckUpgrade.
func (d PageDoor) Serve(w http.ResponseWriter, r *http.Request, p *auth.Principal, signedOut <-chan struct{}) {
	if d.CheckPeer(w, r) {
		d.s.upgrade(w, r, p, signedOut)
	}
}

// IsGateway reports whether the server is a gateway, whose page shows machines. ServeGateway
// serves it, and Serve does not.
func (d PageDoor) IsGateway() bool { return d.s.opts.Internal.Gateway != nil }

// ServeGateway has the gateway serve a request of a browser to a principal, until that ends,
// or until signedOut is closed. The path is one of the gateway's. An upgrade has passed
// CheckUpgrade.
func (d PageDoor) ServeGateway(w http.ResponseWriter, r *http.Request, p *auth.Principal, signedOut <-chan struct{}) {
	if !d.CheckPeer(w, r) {
		return
	}
	gateway, own := d.s.opts.Internal.Gateway, *p // of this request alone, by which it is found below
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
	gateway.Serve(w, r.WithContext(ctx), &Admitted{&own, r.RemoteAddr, d.s, signedOut})
}

// webPath is where the page redirects to where it is.
const webPath = "/web"

func (s *Server) servesPage() bool { return s.opts.Internal.Page != nil }

// page returns what the page serves, if there is one.
func (s *Server) page() map[string]http.HandlerFunc {
	if !s.servesPage() {
		return nil
	}
	return s.opts.Internal.Page.Handlers(PageDoor{s})
}

// webLink serves web/link.
func (c *connection) webLink(r *rpc.Request, _ protocol.NoParams) {
	if !c.server.servesPage() {
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this server has no page", r.Method))
		return
	}
	if c.principal.Browser {
		// It could stay by the link when it is signed out.
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused to a browser: exec-server web prints links", r.Method))
		return
	}
	path, life := c.server.opts.Internal.Page.Link(c.principal)
	c.server.audit.Record(c.event("link to the page"))
	r.Reply(protocol.WebLinkResult{Path: path, LifeMs: uint64(life.Milliseconds())})
}

// linkPath is where a gateway gives links to clients, because it speaks no protocol itself.
// It is no path of the page: the handler admits no browser there, not even the page.
const linkPath = "/web/link"

// serveLink is web/link of a gateway.
func (s *Server) serveLink(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	principal := s.admit(w, r)
	if principal == nil {
		return
	}
	path, life := s.opts.Internal.Page.Link(principal)
	s.log.Info("link to the page", "remote", r.RemoteAddr, "principal", principal.Name)
	s.audit.Record(audit.Event{Event: "link to the page", Remote: r.RemoteAddr, Principal: principal.Name})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(protocol.WebLinkResult{Path: path, LifeMs: uint64(life.Milliseconds())}) // the client may be gone
}
