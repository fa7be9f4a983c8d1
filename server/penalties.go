package server

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"execserver/internal/count"
)

// Penalties are what failures cost an address, like PerSourcePenalties of sshd. Each
// failure adds to the address's penalty time. While that is at least Min, the server
// delays its answer to bad credentials by that time, at most Max. Good credentials are
// never delayed, because many clients may share an address, such as loopback.
type Penalties struct {
	AuthFail      time.Duration // wrong or missing credentials
	GraceExceeded time.Duration // no complete request within 10 seconds
	Min, Max      time.Duration
}

// DefaultPenalties are a server's default Penalties.
var DefaultPenalties = Penalties{
	AuthFail: 100 * time.Millisecond, GraceExceeded: time.Second, Min: time.Second, Max: 5 * time.Second,
}

// maxSources bounds the remembered addresses. Further addresses share one place.
const maxSources = 4096

// refusalPause is how long the server counts further refusals of an address instead of
// logging them.
const refusalPause = time.Minute

// penalties are the penalties of all addresses, and the refusals to log.
type penalties struct {
	limits Penalties
	log    *slog.Logger

	counts count.Table[RefusalReason]

	mu      sync.Mutex
	until   map[string]time.Time
	refused map[string]*refusals
}

func newPenalties(limits Penalties, log *slog.Logger) *penalties {
	return &penalties{limits: limits, log: log, until: make(map[string]time.Time), refused: make(map[string]*refusals)}
}

// refusals are refusals of an address that are not logged yet.
type refusals struct {
	count  int
	reason string // of the last
}

// place makes room in a map of addresses, and returns the key for an address.
func place[V any](m map[string]V, source string) string {
	if _, ok := m[source]; !ok && len(m) >= maxSources {
		return "others"
	}
	return source
}

// add adds to an address's penalty, and returns the sum.
func (p *penalties) add(source string, cost time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(p.until) >= maxSources {
		for known, until := range p.until {
			if until.Before(now) {
				delete(p.until, known)
			}
		}
	}
	source = place(p.until, source)
	until := p.until[source]
	if until.Before(now) {
		until = now
	}
	until = until.Add(cost)
	if latest := now.Add(p.limits.Max); until.After(latest) {
		until = latest
	}
	p.until[source] = until
	return until.Sub(now)
}

// authFailed waits before the answer to bad credentials, as long as the penalty says.
func (p *penalties) authFailed(ctx context.Context, source string) {
	penalty := p.add(source, p.limits.AuthFail)
	if penalty < p.limits.Min {
		return
	}
	timer := time.NewTimer(penalty)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// refusal counts a refusal, and logs it.
func (p *penalties) refusal(of RefusalReason, remote, text string) {
	p.counts.Add(of)
	p.logRefusal(remote, text)
}

// logRefusal logs a refusal: the first of an address at once, further ones together once
// a minute.
func (p *penalties) logRefusal(remote, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	source := place(p.refused, sourceOf(remote))
	if known := p.refused[source]; known != nil {
		known.count, known.reason = known.count+1, reason
		return
	}
	p.refused[source] = &refusals{}
	p.log.Warn("connection refused", "remote", remote, "reason", reason)
	time.AfterFunc(refusalPause, func() { p.logMore(source) })
}

// logMore logs the refusals since the last time.
func (p *penalties) logMore(source string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.refused[source]
	if known.count == 0 {
		delete(p.refused, source)
		return
	}
	p.log.Warn("more connections refused", "source", source, "count", known.count, "lastReason", known.reason)
	*known = refusals{}
	time.AfterFunc(refusalPause, func() { p.logMore(source) })
}

// httpLog is the ErrorLog of an http.Server. It logs what peers cause like other
// refusals.
type httpLog struct{ p *penalties }

// Write logs a line of package net/http.
func (l httpLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	failure, ofHandshake := strings.CutPrefix(text, "http: TLS handshake error from ")
	if remote, reason, ok := strings.Cut(failure, ": "); ofHandshake && ok {
		l.p.refusal(RefusedTLS, remote, "TLS handshake: "+reason)
	} else {
		l.p.log.Warn(text)
	}
	return len(line), nil
}
