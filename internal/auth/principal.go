package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"time"
)

// Principal is who has come in.
type Principal struct {
	// Name is the same whenever the same one comes in; "" without authentication.
	Name string
	// Expires is when the credentials do; zero: never.
	Expires time.Time
	// Grant is what it may do.
	Grant *Grant

	entry       *entry            // that was good; nil: none
	key         [sha256.Size]byte // that signed the token; zero: none
	certificate *certificate      // that was presented; nil: none
}

// Anybody is who comes in where there is no authentication.
var Anybody = &Principal{}

// Rights is a text that changes with anything that the principal's entry says, but for
// its expiry.
func (p *Principal) Rights() string {
	if p.entry == nil {
		return ""
	}
	return p.entry.said
}

// Holds reports whether the credentials of a principal would still be good, but for
// their expiry. An entry that has changed in any way is another one.
func (a *Authenticator) Holds(p *Principal) bool {
	e, still := a.still(p)
	return still && (e == nil || e.expires.Equal(p.entry.expires))
}

// Stands reports whether the sessions of a principal may go on: its credentials hold,
// or nothing of them has changed but when they expire, which is yet to come.
func (a *Authenticator) Stands(p *Principal) bool {
	e, still := a.still(p)
	return still && (e == nil || e.expires.Equal(p.entry.expires) || !e.expired())
}

// still reports whether the credentials of a principal would be good but for the time,
// and finds the entry that says so; nil: there need not be one.
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

// entry is what somebody has put down about a credential.
type entry struct {
	name    string          // of the principal; "": the credential tells
	token   tokenCredential // nil: a certificate is enough
	subject string          // of the certificate
	expires time.Time       // zero: never
	grant   *Grant
	now     func() time.Time
	said    string // everything about it, but for its expiry and the content of key files
}

// tokenCredential is what is known about a good token.
type tokenCredential interface {
	// verify returns whom a good token stands for. The token is not empty.
	verify(token string) (*Principal, *Refusal)
	// holds reports whether a token that was good would still be, but for the time.
	holds(*Principal) bool
}

// verify returns whom a token stands for if it is good for this entry.
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

// admit gives a principal what the entry says.
func (e *entry) admit(p *Principal) *Principal {
	p.entry, p.Grant = e, e.grant
	p.Expires = earlier(p.Expires, e.expires)
	switch {
	case e.name == "":
	case p.Name == "":
		p.Name = e.name
	default: // several people have tokens for the entry
		p.Name = e.name + ":" + p.Name
	}
	return p
}

// earlier returns the earlier end; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// minTokenBytes is the least length of a capability token: nobody guesses 16 random bytes.
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
	case len(token) < minTokenBytes: // which a digest does not tell
		return nil, refuseShort
	}
	return &Principal{key: c}, nil
}

func (c capability) holds(p *Principal) bool { return p.key == c }
