package web

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"sync"
	"time"

	"execserver/internal/auth"
)

// Each principal has at most maxPasses of a kind, and all together have at most
// maxAllPasses. One more replaces the oldest.
const (
	maxPasses    = 64
	maxAllPasses = 4096
)

// passes are secrets of one kind that stand for a principal. They are kept as digests.
type passes struct {
	life time.Duration

	mu   sync.Mutex
	list []*pass // in the order in which they were issued, and so of their ends
}

type pass struct {
	digest    [sha256.Size]byte
	principal *auth.Principal
	ends      time.Time
	of        *pass         // of a ticket: the key for which it was issued
	gone      chan struct{} // closed when the secret is good for nothing any more
}

// issue returns a new secret, and when it ends. of is nil, or the key for which a ticket is.
func (p *passes) issue(principal *auth.Principal, of *pass) (secret string, ends time.Time) {
	text := make([]byte, 32)
	_, _ = rand.Read(text) // never fails
	secret = base64.RawURLEncoding.EncodeToString(text)
	ends = now().Add(p.life)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked()
	own := 0
	for _, known := range p.list {
		if known.principal.Name == principal.Name {
			own++
		}
	}
	switch {
	case own >= maxPasses:
		p.removeLocked(slices.IndexFunc(p.list, func(known *pass) bool { return known.principal.Name == principal.Name }))
	case len(p.list) >= maxAllPasses:
		p.removeLocked(0)
	}
	p.list = append(p.list, &pass{sha256.Sum256([]byte(secret)), principal, ends, of, make(chan struct{})})
	return secret, ends
}

// find returns the pass with a secret, or nil.
func (p *passes) find(secret string) *pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.indexLocked(secret); i >= 0 {
		return p.list[i]
	}
	return nil
}

// take is like find, and no other call finds the pass again.
func (p *passes) take(secret string) *pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.indexLocked(secret)
	if i < 0 {
		return nil
	}
	return p.removeLocked(i)
}

func (p *pass) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func (p *passes) removeLocked(i int) *pass {
	removed := p.list[i]
	close(removed.gone)
	p.list = slices.Delete(p.list, i, i+1)
	return removed
}

// indexLocked compares digests, so that the time it takes tells nothing about a secret.
func (p *passes) indexLocked(secret string) int {
	p.forgetLocked()
	digest := sha256.Sum256([]byte(secret))
	return slices.IndexFunc(p.list, func(known *pass) bool { return known.digest == digest })
}

// forgetLocked forgets what has ended.
func (p *passes) forgetLocked() {
	at := now()
	for i := 0; i < len(p.list); {
		if at.Before(p.list[i].ends) {
			i++
		} else {
			p.removeLocked(i)
		}
	}
}

// now returns the time of the wall clock: a machine that sleeps does not stop it.
func now() time.Time { return time.Now().Round(0) }
