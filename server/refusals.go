package server

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"execserver/internal/count"
	"execserver/protocol"
)

// refusalDelay is how long the server delays the answer to wrong credentials, which slows down
// those who guess.
const refusalDelay = 250 * time.Millisecond

// maxSources bounds the remembered addresses. Further addresses share one place.
const maxSources = 4096

// refusalPause is how long the server counts further refusals of an address instead of
// logging them.
const refusalPause = time.Minute

// refusals counts, logs and delays refusals.
type refusals struct {
	log     *slog.Logger
	counts  count.Table[RefusalReason]
	delay   time.Duration
	delayed chan struct{} // as many as may wait

	mu       sync.Mutex
	unlogged map[string]*unlogged // by source
}

// unlogged are refusals of an address that are not logged yet.
type unlogged struct {
	count  int
	reason string // of the last
}

// newRefusals returns refusals of which maxDelayed may wait at the same time.
func newRefusals(log *slog.Logger, maxDelayed int) *refusals {
	return &refusals{
		log: log, delay: refusalDelay, delayed: make(chan struct{}, maxDelayed), unlogged: make(map[string]*unlogged),
	}
}

// wait delays the answer to wrong credentials, unless too many answers wait already: each of them
// holds a descriptor.
func (r *refusals) wait(ctx context.Context) {
	select {
	case r.delayed <- struct{}{}:
	default:
		return
	}
	defer func() { <-r.delayed }()
	timer := time.NewTimer(r.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// add counts a refusal, and logs it.
func (r *refusals) add(of RefusalReason, remote, text string) {
	r.counts.Add(of)
	r.record(remote, text)
}

// record logs a refusal: the first of an address at once, further ones together once a
// minute.
func (r *refusals) record(remote, reason string) {
	reason = protocol.Shorten(reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	source := sourceOf(remote)
	if r.unlogged[source] == nil && len(r.unlogged) >= maxSources {
		source = "others"
	}
	if known := r.unlogged[source]; known != nil {
		known.count, known.reason = known.count+1, reason
		return
	}
	r.unlogged[source] = &unlogged{}
	r.log.Warn("connection refused", "remote", remote, "reason", reason)
	time.AfterFunc(refusalPause, func() { r.logMore(source) })
}

// logMore logs the refusals since the last time.
func (r *refusals) logMore(source string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.unlogged[source]
	if known.count == 0 {
		delete(r.unlogged, source)
		return
	}
	r.log.Warn("more connections refused", "source", source, "count", known.count, "lastReason", known.reason)
	*known = unlogged{}
	time.AfterFunc(refusalPause, func() { r.logMore(source) })
}

// httpLog is the ErrorLog of an http.Server. It logs what peers cause like other
// refusals.
type httpLog struct{ *refusals }

// Write logs a line of package net/http.
func (l httpLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	failure, ofHandshake := strings.CutPrefix(text, "http: TLS handshake error from ")
	if remote, reason, ok := strings.Cut(failure, ": "); ofHandshake && ok {
		l.add(RefusedTLS, remote, "TLS handshake: "+reason)
	} else {
		l.log.Warn(text)
	}
	return len(line), nil
}
