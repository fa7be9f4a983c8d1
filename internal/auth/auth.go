// Package auth decides who may connect to the server.
//
// Whoever gets through can run commands, so everything that is not exactly right is
// refused. [New] turns the flags into an [Authenticator], and
// [Authenticator.Authenticate] is asked about each upgrade request, after the checks of
// Origin, route and upgrade headers. What it knows of good credentials is a list of
// entries, each of which is about one of
//
//   - a capability token: a secret that the client repeats. Only its SHA-256 digest is kept.
//   - signed bearer tokens: JSON Web Tokens signed with HS256 and a shared secret, or with
//     EdDSA or RS256 and a key of a JWKS file.
//   - a client certificate, where TLS demands them.
//
// Who gets through is a [Principal]. Its credentials may expire while it is connected, or
// be revoked, since the files are read again when they change: [Authenticator.Refresh],
// [Authenticator.Holds]. On unix sockets the system tells who connects: [Peers].
//
// Tokens travel as "Authorization: Bearer TOKEN". Clients that cannot send a
// header but keep the query of their URL may use "?token=TOKEN" if
// [Config.AllowQueryToken] permits it.
//
// Flags, texts and status codes that the released exec-server has are the same here.
// Neither errors nor refusals ever contain a secret or any part of a presented credential.
package auth

import (
	"crypto/x509"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"execserver/internal/trusted"
)

// Authenticator checks upgrade requests. It is safe for concurrent use.
//
// A nil *Authenticator stands for "no authentication" and allows everybody; the zero value
// allows nobody. Use [New].
type Authenticator struct {
	state           *trusted.Value[*state]
	allowQueryToken bool
}

// state is what the files say. It does not change.
type state struct {
	entries []*entry
	pool    *x509.CertPool // of those who sign client certificates; nil: there are none
	tokens  bool           // there may be entries, although there is none now: a certificate is not enough
}

// Refresh reads the files again if they have changed. After an error everything stays
// as it was.
func (a *Authenticator) Refresh() (changed bool, err error) {
	if a == nil || a.state == nil {
		return false, nil
	}
	return a.state.Refresh()
}

// Look is Refresh that believes a change only when the Look before has found the same.
func (a *Authenticator) Look() (changed bool, err error) {
	if a == nil || a.state == nil {
		return false, nil
	}
	return a.state.Look()
}

// Paths are those of the files of a kind that it reads at this time.
func (a *Authenticator) Paths(kind trusted.Kind) []string {
	if a == nil || a.state == nil {
		return nil
	}
	return a.state.Paths(kind)
}

// ClientCAs are the authorities whose client certificates are good at this moment; nil:
// clients need no certificate.
func (a *Authenticator) ClientCAs() *x509.CertPool {
	if a == nil || a.state == nil {
		return nil
	}
	return a.state.Get().pool
}

// Refusal is the answer to a request that did not authenticate. The texts are a small
// fixed set, so they may be logged and used as metric labels.
//
// A *Refusal is an error, but compare it with nil before it is stored in an error variable:
// a nil *Refusal in there would no longer be a nil error.
type Refusal struct{ text string }

// Error returns the text that the client gets to see.
func (r *Refusal) Error() string { return r.text }

// ServeHTTP answers the request: status 401 with the text as body and, as clients expect,
// no WWW-Authenticate header.
func (r *Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(r.text)))
	w.WriteHeader(http.StatusUnauthorized)
	// The client may be gone; there is nobody left to tell.
	_, _ = io.WriteString(w, r.text)
}

// Every refusal there is.
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

// Authenticate decides about an upgrade request: who sends it, or why it is refused.
//
// It reads only the Authorization headers and, if allowed, the query of the URL, and
// looks at the client certificate where that is demanded. If there
// is any Authorization header, the query is not looked at, not even when the header is bad.
// A URL whose query may hold a token should not be logged.
func (a *Authenticator) Authenticate(r *http.Request) (*Principal, *Refusal) {
	if a == nil {
		return Anybody, nil
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
		if p := now.certified(certificate); p != nil && (!now.tokens || !a.presentsToken(r)) {
			return p, nil
		}
	}
	token, refusal := a.token(r)
	if refusal != nil {
		return nil, refusal
	}
	p, refusal := now.verify(token)
	if refusal != nil {
		return nil, refusal
	}
	if certificate != nil {
		p.certificate = certificate
		p.Expires = earlier(p.Expires, certificate.expires)
	}
	return p, nil
}

// verify finds the entry that a token is good for.
func (s *state) verify(token string) (*Principal, *Refusal) {
	var told *Refusal
	for _, e := range s.entries {
		if e.token == nil {
			continue
		}
		p, refusal := e.verify(token)
		if refusal == nil {
			return p, nil
		}
		if told == nil || refusal.closer(told, token) {
			told = refusal
		}
	}
	if told == nil {
		told = refuseCapability
	}
	return nil, told
}

// closer reports whether a refusal by one entry says more about a token than that by
// another one.
func (r *Refusal) closer(other *Refusal, token string) bool {
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
		return 2 // it is nearly right
	}
	return rank(r) > rank(other)
}

// presentsToken reports whether a request has something that may be a token.
func (a *Authenticator) presentsToken(r *http.Request) bool {
	_, refusal := a.token(r)
	return refusal != refuseMissing
}

// token finds the one credential that the request presents.
func (a *Authenticator) token(r *http.Request) (string, *Refusal) {
	if headers := r.Header.Values("Authorization"); len(headers) > 0 {
		// With several headers a proxy in front of the server may have looked at another
		// one than we would, so none of them is believed.
		if len(headers) > 1 {
			return "", refuseHeader
		}
		token, ok := bearerToken(headers[0])
		if !ok {
			return "", refuseHeader
		}
		return token, nil
	}
	if !a.allowQueryToken || r.URL == nil {
		return "", refuseMissing
	}
	// Pairs that do not parse are left out of the values. They matter only when the token
	// is not found: it may have been one of them.
	values, err := url.ParseQuery(r.URL.RawQuery)
	tokens := values["token"]
	switch {
	case len(tokens) == 0 && err == nil:
		return "", refuseMissing
	case len(tokens) != 1:
		return "", refuseQuery
	}
	token, ok := cleanToken(tokens[0])
	if !ok {
		return "", refuseQuery
	}
	return token, nil
}

// bearerToken takes the token out of the value of an Authorization header.
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

// cleanToken trims spaces and tabs. It reports false if nothing is left or if there is
// anything but printable ASCII, spaces and tabs in s, which no client can send in a header.
// In particular no line break gets through: base64 decoders skip those, which would give
// one JWT many spellings.
func cleanToken(s string) (string, bool) {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c > '~' {
			return "", false
		}
	}
	s = strings.Trim(s, " \t")
	return s, s != ""
}
