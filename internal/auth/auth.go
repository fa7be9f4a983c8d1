// Package auth decides who may open a WebSocket connection to the server.
//
// Whoever gets through can run commands, so everything that is not exactly right is
// refused. [New] turns the --ws-* flags into an [Authenticator], and
// [Authenticator.Authenticate] is asked about each upgrade request, after the checks of Origin,
// route and upgrade headers. There are two modes:
//
//   - capability-token: one secret that the client repeats. Only its SHA-256 digest is kept.
//   - signed-bearer-token: a JSON Web Token signed with HS256 and a shared secret.
//
// Who gets through is a [Principal], whose credentials may expire while it is connected.
//
// The credential travels as "Authorization: Bearer TOKEN". Clients that cannot send a
// header but keep the query of their URL may use "?token=TOKEN" if
// [Config.AllowQueryToken] permits it.
//
// Flags, texts and status codes are those of the released exec-server. Neither errors nor
// refusals ever contain a secret or any part of a presented credential.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Authenticator checks upgrade requests. It is immutable and safe for concurrent use.
//
// A nil *Authenticator stands for "no authentication" and allows everybody; the zero value
// allows nobody. Use [New].
type Authenticator struct {
	credential      credential
	allowQueryToken bool
}

// credential is what a mode of authentication knows about a good token.
type credential interface {
	// verify returns whom a good token stands for. The token is not empty.
	verify(token string) (*Principal, *Refusal)
}

// minTokenBytes is the least length of a capability token: nobody guesses 16 random bytes.
const minTokenBytes = 16

// Principal is who has come in.
type Principal struct {
	// Name is the same whenever the same one comes in; "" without authentication.
	Name string
	// Expires is when the credentials do; zero: never.
	Expires time.Time
}

// Anybody is who comes in where there is no authentication.
var Anybody = &Principal{}

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
	refuseMissing    = &Refusal{"missing websocket bearer token"}
	refuseHeader     = &Refusal{"invalid authorization header"}
	refuseQuery      = &Refusal{"invalid token query parameter"}
	refuseCapability = &Refusal{"invalid websocket bearer token"}
	refuseShort      = &Refusal{"websocket bearer token is right, but shorter than 16 bytes; the server needs a longer one"}
	refuseJWT        = &Refusal{"invalid websocket jwt"}
	refuseExpired    = &Refusal{"expired websocket jwt"}
	refuseEarly      = &Refusal{"websocket jwt is not valid yet"}
	refuseIssuer     = &Refusal{"websocket jwt issuer mismatch"}
	refuseAudience   = &Refusal{"websocket jwt audience mismatch"}
)

// Authenticate decides about an upgrade request: who sends it, or why it is refused.
//
// It reads only the Authorization headers and, if allowed, the query of the URL. If there
// is any Authorization header, the query is not looked at, not even when the header is bad.
// A URL whose query may hold a token should not be logged.
func (a *Authenticator) Authenticate(r *http.Request) (*Principal, *Refusal) {
	if a == nil {
		return Anybody, nil
	}
	if a.credential == nil {
		return nil, refuseCapability
	}
	token, refusal := a.token(r)
	if refusal != nil {
		return nil, refusal
	}
	return a.credential.verify(token)
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

// capability is the SHA-256 digest of a capability token.
type capability [sha256.Size]byte

// verify compares digests, so the time taken says nothing about the token: neither its
// length nor how many characters were right.
func (c capability) verify(token string) (*Principal, *Refusal) {
	presented := sha256.Sum256([]byte(token))
	switch {
	case subtle.ConstantTimeCompare(c[:], presented[:]) != 1:
		return nil, refuseCapability
	case len(token) < minTokenBytes: // which a digest does not tell
		return nil, refuseShort
	}
	return &Principal{Name: "token"}, nil
}
