package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"execserver/internal/quota"
)

// Principal is the identity of a client.
type Principal struct {
	// Name is the same whenever the same client connects; "" without authentication.
	Name string
	// Expires is when the credentials expire; zero for never.
	Expires time.Time
	// Grant is what the principal may do; nil: everything.
	Grant *Grant
	// Alone reports that no other principal except root can connect.
	Alone bool
	// Browser reports that the client is a browser with a key of the page, which
	// replaces the credentials until it signs out.
	Browser bool

	entry       *entry            // that accepted the credentials; nil for none
	key         [sha256.Size]byte // that signed the token; zero for none
	certificate *certificate      // that the client presented; nil for none
}

// Unauthenticated is the principal of every client without authentication.
var Unauthenticated = &Principal{Alone: true}

// QuotaKey returns the key under which quotas count the principal's share; "" if there are
// no other principals.
func (p *Principal) QuotaKey() string {
	if p.Alone {
		return quota.None
	}
	return p.Name
}

// Rights returns a text that changes when anything in the principal's entry changes
// except its expiry.
func (p *Principal) Rights() string {
	if p.entry == nil {
		return ""
	}
	return p.entry.definition
}

// Valid reports whether the credentials of a principal are still valid, apart from their
// expiry. An entry that has changed in any way is another one.
func (a *Authenticator) Valid(p *Principal) bool {
	e, still := a.currentEntry(p)
	return still && (e == nil || e.expires.Equal(p.entry.expires))
}

// SessionValid reports whether the sessions of a principal may continue: its credentials hold,
// or nothing but their expiry has changed, to a time in the future.
func (a *Authenticator) SessionValid(p *Principal) bool {
	e, still := a.currentEntry(p)
	return still && (e == nil || e.expires.Equal(p.entry.expires) || !e.expired())
}

// currentEntry reports whether the credentials of a principal are valid apart from the time. It
// returns the entry that accepts them, which may be nil.
func (a *Authenticator) currentEntry(p *Principal) (*entry, bool) {
	if a == nil || a.state == nil || p.entry == nil && p.certificate == nil {
		return nil, true
	}
	now := a.state.Get()
	if p.certificate != nil && !p.certificate.trustedBy(now.pool) {
		return nil, false
	}
	if p.entry == nil {
		return nil, !now.tokens
	}
	for _, e := range now.entries {
		if e.definition == p.entry.definition {
			return e, e.token == nil || e.token.stillValid(p)
		}
	}
	return nil, false
}

// entry is the configuration of a credential.
type entry struct {
	name       string        // of the principal; "": taken from the credential
	token      tokenVerifier // nil if a certificate is enough
	subject    string        // of the certificate
	query      bool          // the token may come in the query of the URL
	expires    time.Time     // zero for never
	grant      *Grant
	now        func() time.Time
	definition string // everything in it, except its expiry and the content of key files
}

// tokenVerifier verifies tokens.
type tokenVerifier interface {
	// verify returns the principal of a valid token. The token is not empty.
	verify(token string) (*Principal, *Refusal)
	// stillValid reports whether a token that was valid would still be, apart from the time.
	stillValid(*Principal) bool
}

// verify returns the principal of a token that is valid for this entry.
func (e *entry) verify(token string) (*Principal, *Refusal) {
	p, refusal := e.token.verify(token)
	if refusal != nil {
		return nil, refusal
	}
	if e.expired() {
		return nil, refuseOld
	}
	return e.admit(p), nil
}

func (e *entry) expired() bool { return !e.expires.IsZero() && !e.now().Before(e.expires) }

// admit gives a principal the rights of the entry.
func (e *entry) admit(p *Principal) *Principal {
	p.entry, p.Grant = e, e.grant
	p.Expires = earlier(p.Expires, e.expires)
	switch {
	case e.name == "":
	case p.Name == "":
		p.Name = e.name
	default: // several people may have tokens for the entry
		p.Name = e.name + ":" + p.Name
	}
	return p
}

// earlier returns the earlier time; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// minTokenBytes is the minimum length of a capability token: 16 random bytes cannot be
// guessed.
const minTokenBytes = 16

// tokenDigest is the SHA-256 digest of a capability token.
type tokenDigest [sha256.Size]byte

// verify compares digests, so its timing reveals nothing about the token: neither its
// length nor the number of correct characters.
func (c tokenDigest) verify(token string) (*Principal, *Refusal) {
	presented := sha256.Sum256([]byte(token))
	switch {
	case subtle.ConstantTimeCompare(c[:], presented[:]) != 1:
		return nil, refuseCapability
	case len(token) < minTokenBytes: // a digest does not show the length
		return nil, refuseShort
	}
	return &Principal{key: c}, nil
}

func (c tokenDigest) stillValid(p *Principal) bool { return p.key == c }

// assertion is the identity assertion that a gateway sends to a machine: a principal that it
// has admitted, and its grant, or that it may do everything. A machine refuses an assertion
// with a restriction that it does not know. It trusts the gateway, so assertions are not signed.
type assertion struct {
	Name    string      `json:"name,omitempty"`
	Expires time.Time   `json:"expires,omitzero"`
	Alone   bool        `json:"alone,omitempty"`
	All     bool        `json:"all,omitempty"`   // everything is allowed,
	Grant   *grantEntry `json:"grant,omitempty"` // or this
	Sandbox bool        `json:"sandbox,omitempty"`
}

// Assertion returns JSON of which FromAssertion makes the principal again, at a machine that
// trusts this program.
func (p *Principal) Assertion() []byte {
	a := assertion{Name: p.Name, Expires: p.Expires, Alone: p.Alone, All: p.Grant == nil}
	if p.Grant != nil {
		a.Grant, a.Sandbox = &p.Grant.said, p.Grant.sandboxed
	}
	text, _ := json.Marshal(a) // cannot fail
	return text
}

// FromAssertion returns the principal of an assertion. Its credentials hold until they expire:
// only the gateway knows whether they are revoked.
func FromAssertion(text []byte) (*Principal, error) {
	var a assertion
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&a); err != nil {
		return nil, fmt.Errorf("the identity assertion is not understood: %w", err)
	}
	if a.Name == "" && !a.Alone {
		return nil, errors.New("the identity assertion names nobody")
	}
	if a.All == (a.Grant != nil) {
		return nil, errors.New("the identity assertion does not say what it allows")
	}
	p := &Principal{Name: a.Name, Expires: a.Expires, Alone: a.Alone}
	if a.Grant == nil {
		return p, nil
	}
	var err error
	p.Grant, err = a.Grant.grant(a.Sandbox)
	return p, err
}
