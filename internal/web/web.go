// Package web shows a server to browsers: what runs there, the terminals, and recordings.
//
// Start at [New], whose [Page] is for server.Options. The page itself is in the directory
// page: modules that a browser runs as they are. It speaks the protocol of all clients over
// a WebSocket, as a principal. A browser signs in with a code that a client of the server
// asked for (PROTOCOL.md, "web/link"), or with a token, and gets a key for some hours. It
// keeps the key in the storage of its origin, from where it never goes anywhere by itself
// as a cookie does, and exchanges it for a ticket for each connection, because the URL of a
// WebSocket lands in logs. The page of a gateway lists its machines, and shows each as that of
// a server does.
package web

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"execserver/internal/auth"
	"execserver/server"
)

// The lives of secrets.
const (
	linkLife   = time.Minute
	keyLife    = 12 * time.Hour
	ticketLife = 10 * time.Second
)

// Page is a page for one server. Its methods may be called concurrently.
type Page struct {
	links, keys, tickets passes
}

// New returns a page.
func New() *Page {
	readFiles()
	return &Page{links: passes{life: linkLife}, keys: passes{life: keyLife}, tickets: passes{life: ticketLife}}
}

// Link implements server.Page.
func (p *Page) Link(principal *auth.Principal) (path string, life time.Duration) {
	code, _ := p.links.issue(principal, nil)
	return root + "#" + code, linkLife
}

// root is the path of the page.
const root = "/web/"

// Handlers implements server.Page.
func (p *Page) Handlers(door server.PageDoor) map[string]http.HandlerFunc {
	d := &doorman{p, door}
	kind := "server"
	if door.IsGateway() {
		kind = "gateway"
	}
	handlers := map[string]http.HandlerFunc{
		"/web":            get(redirect),
		root:              get(serveIndex(kind)),
		root + "sign-in":  post(d.signIn),
		root + "sign-out": post(d.signOut),
		root + "ticket":   post(d.ticket),
		root + "socket":   d.socket,
	}
	if door.IsGateway() {
		handlers[root+"fleet"] = get(d.fleet)
	}
	for name, f := range files {
		handlers[root+name] = get(f.serve)
	}
	return handlers
}

// doorman lets browsers in.
type doorman struct {
	page *Page
	door server.PageDoor
}

// signIn gives a key for the code of a link, or for a token.
func (d *doorman) signIn(w http.ResponseWriter, r *http.Request) {
	var principal *auth.Principal
	if r.Header.Get("Authorization") != "" {
		if principal = d.door.Admit(w, r); principal == nil {
			return
		}
	} else {
		var body struct{ Code string }
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&body)
		link := d.page.links.take(body.Code)
		switch {
		case err != nil, link == nil, !d.door.Holds(link.principal):
			d.door.Refuse(w, r, "this link has been used, or its minute is over; "+d.command()+" prints another one")
			return
		case !d.door.CheckPeer(w, r):
			return
		}
		principal = link.principal
	}
	key, ends := d.page.keys.issue(principal, nil)
	if e := principal.Expires; !e.IsZero() && e.Before(ends) {
		ends = e
	}
	d.door.SignedIn(r, principal)
	answer(w, map[string]any{"key": key, "endsAtMs": ends.UnixMilli(), "principal": principal.Name})
}

// command returns the command that prints links.
func (d *doorman) command() string {
	if d.door.IsGateway() {
		return "exec-fleet web"
	}
	return "exec-server web"
}

// bearer returns the key of a request.
func bearer(r *http.Request) string {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return key
}

// signOut forgets a key, and ends the connections that it has opened.
func (d *doorman) signOut(w http.ResponseWriter, r *http.Request) {
	d.page.keys.take(bearer(r))
	answer(w, map[string]any{})
}

// holder returns what the key of a request stands for, until the key ends. If nobody is
// signed in with it, holder answers the request and returns nil.
func (d *doorman) holder(w http.ResponseWriter, r *http.Request) (*auth.Principal, *pass) {
	key := d.page.keys.find(bearer(r))
	if key == nil || !d.door.Holds(key.principal) {
		d.door.Refuse(w, r, "nobody is signed in with this key any more")
		return nil, nil
	}
	principal := *key.principal
	principal.Browser = true
	if principal.Expires.IsZero() || key.ends.Before(principal.Expires) {
		principal.Expires = key.ends
	}
	return &principal, key
}

// ticket gives a ticket for a key.
func (d *doorman) ticket(w http.ResponseWriter, r *http.Request) {
	principal, key := d.holder(w, r)
	if key == nil {
		return
	}
	ticket, _ := d.page.tickets.issue(principal, key)
	answer(w, map[string]any{"ticket": ticket})
}

// socket serves the protocol to the holder of a ticket. At a gateway it is that of a machine.
func (d *doorman) socket(w http.ResponseWriter, r *http.Request) {
	if !d.door.CheckUpgrade(w, r) {
		return // without using up a ticket
	}
	query := r.URL.Query()
	ticket := d.page.tickets.take(query.Get("ticket"))
	switch {
	case ticket == nil || ticket.of.isGone() || !d.door.Holds(ticket.principal):
		d.door.Refuse(w, r, "this ticket has been used, or is too old")
	case d.door.IsGateway():
		d.door.ServeGateway(w, withPath(r, "/env/"+query.Get("machine")), ticket.principal, ticket.of.gone)
	default:
		d.door.Serve(w, r, ticket.principal, ticket.of.gone)
	}
}

// fleet answers with the machines that the holder of a key may use.
func (d *doorman) fleet(w http.ResponseWriter, r *http.Request) {
	if principal, key := d.holder(w, r); key != nil {
		w.Header().Set("Cache-Control", "no-store")
		d.door.ServeGateway(w, withPath(r, "/fleet"), principal, key.gone)
	}
}

// withPath returns a request for another path, without a query: that of a browser has its
// ticket.
func withPath(r *http.Request, path string) *http.Request {
	other := r.WithContext(r.Context()) // a copy
	other.URL = &url.URL{Path: path}
	return other
}

// get answers requests with another method than GET or HEAD, and sets the header that the
// answers of the page have in common.
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

// guard tells browsers what nothing here needs.
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
