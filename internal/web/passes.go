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
}

// issue returns a new secret, and when it ends.
func (p *passes) issue(principal *auth.Principal) (secret string, ends time.Time) {
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
		i := slices.IndexFunc(p.list, func(known *pass) bool { return known.principal.Name == principal.Name })
		p.list = slices.Delete(p.list, i, i+1)
	case len(p.list) >= maxAllPasses:
		p.list = slices.Delete(p.list, 0, 1)
	}
	p.list = append(p.list, &pass{sha256.Sum256([]byte(secret)), principal, ends})
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
	taken := p.list[i]
	p.list = slices.Delete(p.list, i, i+1)
	return taken
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
	p.list = slices.DeleteFunc(p.list, func(known *pass) bool { return !at.Before(known.ends) })
}

// now returns the time of the wall clock: a machine that sleeps does not stop it.
func now() time.Time { return time.Now().Round(0) }
