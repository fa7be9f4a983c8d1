// Package auth decides who may connect to the server.
//
// A client that gets through can run commands, so the package refuses everything that is
// not exactly right. [New] turns a [Config] into an [Authenticator]. The server calls
// [Authenticator.Authenticate] for each upgrade request, after the checks of Origin,
// route and upgrade headers. An Authenticator has a list of entries, each for one of
//
//   - a capability token: a secret that the client repeats. Only its SHA-256 digest is kept.
//   - signed bearer tokens: JSON Web Tokens signed with HS256 and a shared secret, or with
//     EdDSA or RS256 and a key of a JWKS file.
//   - a client certificate, where TLS demands them.
//
// A successful request has a [Principal]. Its credentials may expire while it is
// connected, or be revoked, because the files are read again when they change:
// [Authenticator.Refresh], [Authenticator.Valid]. On unix sockets the system identifies the
// peer: [Peers].
//
// [ReadFile] and [LoadFiles] read what credentials are made from: secrets, keys, certificates
// and lists of them. They refuse files that another user could have read or written.
//
// Tokens travel as "Authorization: Bearer TOKEN". Clients that cannot send a
// header but keep the query of their URL may use "?token=TOKEN" if the entry of the token,
// or [Config.AllowQueryToken], permits it.
//
// Texts and status codes are the same as those of the released exec-server.
// Neither errors nor refusals ever contain a secret or any part of a presented credential.
package auth

import (
	"crypto/x509"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Authenticator checks upgrade requests. It is safe for concurrent use.
//
// A nil *Authenticator allows every request, without authentication; the zero value allows
// none. Use [New].
type Authenticator struct {
	state *Reloaded[*state]
}

// state is the content of the files. It does not change.
type state struct {
	entries []*entry
	pool    *x509.CertPool // authorities of client certificates; nil: none
	tokens  bool           // tokens are configured, even if there is no entry now, so a certificate is not enough
}

// Refresh reads the files again if they have changed. After an error the Authenticator
// stays as it was.
func (a *Authenticator) Refresh() (changed bool, err error) {
	if a == nil || a.state == nil {
		return false, nil
	}
	return a.state.Refresh()
}

// Poll is like Refresh, but accepts a change only if the previous Poll found the same.
func (a *Authenticator) Poll() (changed bool, err error) {
	if a == nil || a.state == nil {
		return false, nil
	}
	return a.state.Poll()
}

// Paths returns the paths of the files of a kind that the Authenticator reads.
func (a *Authenticator) Paths(kind FileKind) []string {
	if a == nil || a.state == nil {
		return nil
	}
	return a.state.Paths(kind)
}

// ClientCAs returns the authorities whose client certificates are valid now. nil means that
// clients need no certificate.
func (a *Authenticator) ClientCAs() *x509.CertPool {
	if a == nil || a.state == nil {
		return nil
	}
	return a.state.Get().pool
}

// Refusal is the answer to a request that did not authenticate. Its texts are a small
// fixed set, so they may be logged and used as metric labels.
//
// A *Refusal is an error, but compare it with nil before it is stored in an error variable:
// a nil *Refusal in there would no longer be a nil error.
type Refusal struct{ text string }

// Error returns the text for the client.
func (r *Refusal) Error() string { return r.text }

// ServeHTTP answers the request: status 401 with the text as body and, as clients expect,
// no WWW-Authenticate header.
func (r *Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(r.text)))
	w.WriteHeader(http.StatusUnauthorized)
	// The client may be gone; an error does not matter.
	_, _ = io.WriteString(w, r.text)
}

// All refusals.
var (
	refuseMissing     = &Refusal{"missing websocket bearer token"}
	refuseHeader      = &Refusal{"invalid authorization header"}
	refuseQuery       = &Refusal{"invalid token query parameter"}
	refuseCapability  = &Refusal{"invalid websocket bearer token"}
	refuseShort       = &Refusal{"websocket bearer token is right, but shorter than 16 bytes; the server needs a longer one"}
	refuseOld         = &Refusal{"expired websocket bearer token"}
	refuseJWT         = &Refusal{"invalid websocket jwt"}
	refuseExpired     = &Refusal{"expired websocket jwt"}
	refuseEarly       = &Refusal{"websocket jwt is not valid yet"}
	refuseIssuer      = &Refusal{"websocket jwt issuer mismatch"}
	refuseAudience    = &Refusal{"websocket jwt audience mismatch"}
	refuseCertificate = &Refusal{"missing or invalid client certificate"}
)

// Authenticate decides about an upgrade request. It returns the principal, or the reason
// for the refusal.
//
// It reads only the Authorization headers and, if allowed, the query of the URL, and the
// client certificate where that is required. If there is any Authorization header, it
// does not read the query, even if the header is bad. A URL whose query may hold a token
// should not be logged.
func (a *Authenticator) Authenticate(r *http.Request) (*Principal, *Refusal) {
	if a == nil {
		return Unauthenticated, nil
	}
	if a.state == nil {
		return nil, refuseCapability
	}
	now := a.state.Get()
	var certificate *certificate
	if now.pool != nil {
		if certificate = now.certificate(r); certificate == nil {
			return nil, refuseCertificate
		}
		if p := now.certified(certificate); p != nil && (!now.tokens || !now.presentsToken(r)) {
			return p, nil
		}
	}
	token, inQuery, refusal := now.token(r)
	if refusal != nil {
		return nil, refusal
	}
	p, refusal := now.verify(token, inQuery)
	if refusal != nil {
		return nil, refusal
	}
	if certificate != nil {
		p.certificate = certificate
		p.Expires = earlier(p.Expires, certificate.expires)
	}
	return p, nil
}

// verify returns the principal of a valid token. inQuery reports that it came in the query.
func (s *state) verify(token string, inQuery bool) (*Principal, *Refusal) {
	var told *Refusal
	for _, e := range s.entries {
		if e.token == nil || inQuery && !e.query {
			continue
		}
		p, refusal := e.verify(token)
		if refusal == nil {
			return p, nil
		}
		if told == nil || refusal.moreSpecific(told, token) {
			told = refusal
		}
	}
	if told == nil {
		told = refuseCapability
	}
	return nil, told
}

// moreSpecific reports whether r tells more about a token than other, the refusal by
// another entry.
func (r *Refusal) moreSpecific(other *Refusal, token string) bool {
	kind := refuseCapability
	if strings.Count(token, ".") == 2 {
		kind = refuseJWT
	}
	rank := func(r *Refusal) int {
		switch r {
		case kind:
			return 1
		case refuseCapability, refuseJWT:
			return 0
		}
		return 2 // it is almost valid
	}
	return rank(r) > rank(other)
}

// presentsToken reports whether a request has a header or a query that may be a token.
func (s *state) presentsToken(r *http.Request) bool {
	_, _, refusal := s.token(r)
	return refusal != refuseMissing
}

// token returns the one credential of the request, and whether it is in the query.
func (s *state) token(r *http.Request) (token string, inQuery bool, refusal *Refusal) {
	if headers := r.Header.Values("Authorization"); len(headers) > 0 {
		// With several headers, a proxy in front of the server may have read another one
		// than the server would, so the server accepts none of them.
		if len(headers) > 1 {
			return "", false, refuseHeader
		}
		token, ok := bearerToken(headers[0])
		if !ok {
			return "", false, refuseHeader
		}
		return token, false, nil
	}
	if r.URL == nil || !slices.ContainsFunc(s.entries, func(e *entry) bool { return e.query }) {
		return "", false, refuseMissing
	}
	// Pairs that do not parse are missing from the values. They matter only if the token
	// is not found, because one of them may have been the token.
	values, err := url.ParseQuery(r.URL.RawQuery)
	tokens := values["token"]
	switch {
	case len(tokens) == 0 && err == nil:
		return "", false, refuseMissing
	case len(tokens) != 1:
		return "", true, refuseQuery
	}
	token, ok := cleanToken(tokens[0])
	if !ok {
		return "", true, refuseQuery
	}
	return token, true, nil
}

// bearerToken returns the token in the value of an Authorization header.
func bearerToken(header string) (token string, ok bool) {
	header, ok = cleanToken(header)
	if !ok {
		return "", false
	}
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return cleanToken(token)
}

// cleanToken trims spaces and tabs. It returns false if nothing is left, or if s has
// anything but printable ASCII, spaces and tabs, which no client can send in a header. In
// particular it refuses line breaks: base64 decoders skip those, so one JWT would have
// many spellings.
func cleanToken(s string) (string, bool) {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c > '~' {
			return "", false
		}
	}
	s = strings.Trim(s, " \t")
	return s, s != ""
}
