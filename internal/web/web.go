// Package web serves the web page of a server, which shows its sessions, terminals and
// recordings.
//
// Start at [New], which returns a [Page] for server.Options. The page itself is in the
// directory page: modules that a browser runs without a build step. It speaks the protocol
// over a WebSocket, as a principal. A browser signs in with a code that a client of the server
// requested (EXTENSIONS.md, "webLink"), or with a token, and receives a key for some hours. It
// keeps the key in the storage of its origin, because browsers do not send that by themselves,
// unlike a cookie. For each connection it exchanges the key for a ticket, because the URL of a
// WebSocket may be logged. The page of a gateway lists its machines, and shows each machine as
// a server's own page does.
package web

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"execserver/internal/auth"
	"execserver/internal/extension"
)

// The lives of secrets.
const (
	linkLife   = time.Minute
	keyLife    = 12 * time.Hour
	ticketLife = 10 * time.Second
)

// Page is a page for one server. Its methods may be called concurrently.
type Page struct {
	links, keys, tickets pageTokens
}

// New returns a page.
func New() *Page {
	readFiles()
	return &Page{links: pageTokens{life: linkLife}, keys: pageTokens{life: keyLife}, tickets: pageTokens{life: ticketLife}}
}

// Link implements extension.Page.
func (p *Page) Link(principal *auth.Principal) (path string, life time.Duration) {
	code, _ := p.links.issue(principal, nil)
	return root + "#" + code, linkLife
}

// root is the path of the page.
const root = "/web/"

// Handlers implements extension.Page.
func (p *Page) Handlers(server extension.PageServer) map[string]http.HandlerFunc {
	a := &pageAuth{p, server}
	kind := "server"
	if server.IsGateway() {
		kind = "gateway"
	}
	handlers := map[string]http.HandlerFunc{
		"/web":            get(redirect),
		root:              get(serveIndex(kind)),
		root + "sign-in":  post(a.signIn),
		root + "sign-out": post(a.signOut),
		root + "ticket":   post(a.ticket),
		root + "socket":   a.socket,
	}
	if server.IsGateway() {
		handlers[root+"fleet"] = get(a.fleet)
	}
	for name, f := range files {
		handlers[root+name] = get(f.serve)
	}
	return handlers
}

// pageAuth authenticates browsers.
type pageAuth struct {
	page   *Page
	server extension.PageServer
}

// signIn issues a key for the code of a link, or for a token.
func (a *pageAuth) signIn(w http.ResponseWriter, r *http.Request) {
	var principal *auth.Principal
	if r.Header.Get("Authorization") != "" {
		if principal = a.server.Admit(w, r); principal == nil {
			return
		}
	} else {
		var body struct{ Code string }
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&body)
		link := a.page.links.take(body.Code)
		switch {
		case err != nil, link == nil, !a.server.Holds(link.principal):
			a.server.Refuse(w, r, "this link has been used, or its minute is over; "+a.command()+" prints another one")
			return
		case !a.server.CheckPeer(w, r):
			return
		}
		principal = link.principal
	}
	key, ends := a.page.keys.issue(principal, nil)
	if e := principal.Expires; !e.IsZero() && e.Before(ends) {
		ends = e
	}
	a.server.SignedIn(r, principal)
	answer(w, map[string]any{"key": key, "endsAtMs": ends.UnixMilli(), "principal": principal.Name})
}

// command returns the command that prints links.
func (a *pageAuth) command() string {
	if a.server.IsGateway() {
		return "exec-fleet web"
	}
	return "exec-server web"
}

// bearer returns the key of a request.
func bearer(r *http.Request) string {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return key
}

// signOut revokes a key, and closes the connections that it has opened.
func (a *pageAuth) signOut(w http.ResponseWriter, r *http.Request) {
	a.page.keys.take(bearer(r))
	answer(w, map[string]any{})
}

// holder returns the principal and the key of a request. If the key is not valid, holder
// answers the request and returns nil.
func (a *pageAuth) holder(w http.ResponseWriter, r *http.Request) (*auth.Principal, *pageToken) {
	key := a.page.keys.find(bearer(r))
	if key == nil || !a.server.Holds(key.principal) {
		a.server.Refuse(w, r, "nobody is signed in with this key any more")
		return nil, nil
	}
	principal := *key.principal
	principal.Browser = true
	if principal.Expires.IsZero() || key.ends.Before(principal.Expires) {
		principal.Expires = key.ends
	}
	return &principal, key
}

// ticket issues a ticket for a key.
func (a *pageAuth) ticket(w http.ResponseWriter, r *http.Request) {
	principal, key := a.holder(w, r)
	if key == nil {
		return
	}
	ticket, _ := a.page.tickets.issue(principal, key)
	answer(w, map[string]any{"ticket": ticket})
}

// socket serves the protocol to the holder of a ticket. A gateway forwards it to a machine.
func (a *pageAuth) socket(w http.ResponseWriter, r *http.Request) {
	if !a.server.CheckUpgrade(w, r) {
		return // without using up a ticket
	}
	query := r.URL.Query()
	ticket := a.page.tickets.take(query.Get("ticket"))
	switch {
	case ticket == nil || ticket.of.isGone() || !a.server.Holds(ticket.principal):
		a.server.Refuse(w, r, "this ticket has been used, or is too old")
	case a.server.IsGateway():
		a.server.ServeGateway(w, withPath(r, "/env/"+query.Get("machine")), ticket.principal, ticket.of.gone)
	default:
		a.server.Serve(w, r, ticket.principal, ticket.of.gone)
	}
}

// fleet answers with the machines that the holder of a key may use.
func (a *pageAuth) fleet(w http.ResponseWriter, r *http.Request) {
	if principal, key := a.holder(w, r); key != nil {
		w.Header().Set("Cache-Control", "no-store")
		a.server.ServeGateway(w, withPath(r, "/fleet"), principal, key.gone)
	}
}

// withPath returns a request for another path, without the query, which contains the ticket.
func withPath(r *http.Request, path string) *http.Request {
	other := r.WithContext(r.Context()) // a copy
	other.URL = &url.URL{Path: path}
	return other
}

// get refuses requests with a method other than GET or HEAD, and sets the common headers of
// the page.
func get(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			refuseMethod(w, "GET,HEAD")
			return
		}
		guard(w.Header())
		serve(w, r)
	}
}

// post is get for POST. A page of another origin cannot send such a request: the server
// has compared the Origin, if there is one.
func post(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			refuseMethod(w, http.MethodPost)
			return
		}
		guard(w.Header())
		w.Header().Set("Cache-Control", "no-store")
		serve(w, r)
	}
}

func refuseMethod(w http.ResponseWriter, allowed string) {
	w.Header().Set("Allow", allowed)
	w.WriteHeader(http.StatusMethodNotAllowed)
}

// guard sets the headers that forbid browsers what this page does not need.
func guard(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // a browser that is gone needs no answer
}

func redirect(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, root, http.StatusSeeOther)
}

// serveIndex returns a function that serves the document of a kind of server. Only style
// elements with its nonce apply: xterm.js makes some. It also sets style attributes, in which
// no text of a program ever is.
func serveIndex(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		nonce := rand.Text()
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-"+nonce+"'; style-src-attr 'unsafe-inline'; "+
			"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "+
			"require-trusted-types-for 'script'; trusted-types 'none'")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		arrived := "here"
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
			arrived = "elsewhere" // a page of another origin has led the browser to the link that it opens
		}
		_, _ = strings.NewReplacer("NONCE", nonce, "KIND", kind, "ARRIVED", arrived).WriteString(w, index)
	}
}
