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

// Each principal has at most maxTokens of a kind, and all together have at most
// maxAllTokens. One more replaces the oldest.
const (
	maxTokens    = 64
	maxAllTokens = 4096
)

// pageTokens are secrets of one kind, each of which authenticates a browser as a principal.
// They are kept as digests.
type pageTokens struct {
	life time.Duration

	mu   sync.Mutex
	list []*pageToken // in the order in which they were issued, and so of their ends
}

type pageToken struct {
	digest    [sha256.Size]byte
	principal *auth.Principal
	ends      time.Time
	of        *pageToken    // of a ticket: the key for which it was issued
	gone      chan struct{} // closed when the token is no longer valid
}

// issue returns a new token and its expiry. of is the key for which a ticket is issued, and
// nil for other tokens.
func (t *pageTokens) issue(principal *auth.Principal, of *pageToken) (secret string, ends time.Time) {
	text := make([]byte, 32)
	_, _ = rand.Read(text) // never fails
	secret = base64.RawURLEncoding.EncodeToString(text)
	ends = now().Add(t.life)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	own := 0
	for _, known := range t.list {
		if known.principal.Name == principal.Name {
			own++
		}
	}
	switch {
	case own >= maxTokens:
		t.removeLocked(slices.IndexFunc(t.list, func(known *pageToken) bool { return known.principal.Name == principal.Name }))
	case len(t.list) >= maxAllTokens:
		t.removeLocked(0)
	}
	t.list = append(t.list, &pageToken{sha256.Sum256([]byte(secret)), principal, ends, of, make(chan struct{})})
	return secret, ends
}

// find returns the token with a secret, or nil.
func (t *pageTokens) find(secret string) *pageToken {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := t.indexLocked(secret); i >= 0 {
		return t.list[i]
	}
	return nil
}

// take is like find, and removes the token.
func (t *pageTokens) take(secret string) *pageToken {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.indexLocked(secret)
	if i < 0 {
		return nil
	}
	return t.removeLocked(i)
}

func (t *pageToken) isGone() bool {
	select {
	case <-t.gone:
		return true
	default:
		return false
	}
}

func (t *pageTokens) removeLocked(i int) *pageToken {
	removed := t.list[i]
	close(removed.gone)
	t.list = slices.Delete(t.list, i, i+1)
	return removed
}

// indexLocked compares digests, so that the time it takes reveals nothing about a secret.
func (t *pageTokens) indexLocked(secret string) int {
	t.forgetLocked()
	digest := sha256.Sum256([]byte(secret))
	return slices.IndexFunc(t.list, func(known *pageToken) bool { return known.digest == digest })
}

// forgetLocked removes the tokens that have expired.
func (t *pageTokens) forgetLocked() {
	at := now()
	for i := 0; i < len(t.list); {
		if at.Before(t.list[i].ends) {
			i++
		} else {
			t.removeLocked(i)
		}
	}
}

// now returns the time of the wall clock, which continues while the machine sleeps.
func now() time.Time { return time.Now().Round(0) }
