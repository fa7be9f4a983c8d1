package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"execserver/internal/quota"
)

// Principal is the identity of a client.
type Principal struct {
	// Name is the same whenever the same client connects; "" without authentication.
	Name string
	// Expires is when the credentials expire; zero for never.
	Expires time.Time
	// Grant says what the principal may do.
	Grant *Grant
	// Alone says that no other principal can connect, apart from root.
	Alone bool
	// Browser says that the client is a browser with a key of the page, which stands for the
	// credentials until it signs out.
	Browser bool

	entry       *entry            // that accepted the credentials; nil for none
	key         [sha256.Size]byte // that signed the token; zero for none
	certificate *certificate      // that the client presented; nil for none
}

// Anybody is the principal of every client without authentication.
var Anybody = &Principal{Alone: true}

// QuotaKey returns the name under which the server counts what it has for the principal, so
// that others keep something; "" if there are no others.
func (p *Principal) QuotaKey() string {
	if p.Alone {
		return quota.Everybody
	}
	return p.Name
}

// Rights returns a text that changes when anything in the principal's entry changes
// except its expiry.
func (p *Principal) Rights() string {
	if p.entry == nil {
		return ""
	}
	return p.entry.said
}

// Holds reports whether the credentials of a principal are still valid, apart from their
// expiry. An entry that has changed in any way is another one.
func (a *Authenticator) Holds(p *Principal) bool {
	e, still := a.still(p)
	return still && (e == nil || e.expires.Equal(p.entry.expires))
}

// Stands reports whether the sessions of a principal may continue: its credentials hold,
// or nothing but their expiry has changed, to a time in the future.
func (a *Authenticator) Stands(p *Principal) bool {
	e, still := a.still(p)
	return still && (e == nil || e.expires.Equal(p.entry.expires) || !e.expired())
}

// still reports whether the credentials of a principal are valid apart from the time. It
// returns the entry that accepts them, which may be nil.
func (a *Authenticator) still(p *Principal) (*entry, bool) {
	if a == nil || a.state == nil || p.entry == nil && p.certificate == nil {
		return nil, true
	}
	now := a.state.Get()
	if p.certificate != nil && !p.certificate.holds(now.pool) {
		return nil, false
	}
	if p.entry == nil {
		return nil, !now.tokens
	}
	for _, e := range now.entries {
		if e.said == p.entry.said {
			return e, e.token == nil || e.token.holds(p)
		}
	}
	return nil, false
}

// entry is what the operator says about a credential.
type entry struct {
	name    string          // of the principal; "": the credential has the name
	token   tokenCredential // nil if a certificate is enough
	subject string          // of the certificate
	query   bool            // the token may come in the query of the URL
	expires time.Time       // zero for never
	grant   *Grant
	now     func() time.Time
	said    string // everything in it, except its expiry and the content of key files
}

// tokenCredential verifies tokens.
type tokenCredential interface {
	// verify returns the principal of a valid token. The token is not empty.
	verify(token string) (*Principal, *Refusal)
	// holds reports whether a token that was valid would still be, apart from the time.
	holds(*Principal) bool
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

// minTokenBytes is the least length of a capability token: nobody can guess 16 random
// bytes.
const minTokenBytes = 16

// capability is the SHA-256 digest of a capability token.
type capability [sha256.Size]byte

// verify compares digests, so the time taken says nothing about the token: neither its
// length nor how many characters were right.
func (c capability) verify(token string) (*Principal, *Refusal) {
	presented := sha256.Sum256([]byte(token))
	switch {
	case subtle.ConstantTimeCompare(c[:], presented[:]) != 1:
		return nil, refuseCapability
	case len(token) < minTokenBytes: // a digest does not show the length
		return nil, refuseShort
	}
	return &Principal{key: c}, nil
}

func (c capability) holds(p *Principal) bool { return p.key == c }
