package client

import (
	"context"
	"sync"
	"time"
)

// window bounds what a copy has on its way, so that the connection is always busy and
// nothing waits in front of it for long: twice what the connection carries in a round
// trip. It learns both from the answers: the shortest time until one, and the highest rate
// of late. The shortest time holds for the whole copy, because with a busy connection no
// later answer shows it.
type window struct {
	mu      sync.Mutex
	room    *sync.Cond // the window has changed
	bytes   int        // on their way, or in memory
	calls   int        // requests without an answer
	limit   int        // for bytes
	trip    time.Duration
	rates   [2]rateSpan // the current span of time, and the one before
	arrived int64       // bytes whose answers have come
	last    time.Time   // when the last of them came
}

// rateSpan has the highest rate in a span of time.
type rateSpan struct {
	begin time.Time
	rate  float64 // bytes per second
}

const (
	minWindow = 256 << 10
	maxWindow = 16 << 20
	maxCalls  = 1024 // one in flight costs memory, however small its content is
	// shortTrip is the shortest round trip that counts: over a quick connection the work
	// at both ends takes time, too.
	shortTrip = 10 * time.Millisecond
	// rateTime is how long a rate counts, at least.
	rateTime = time.Second
)

func newWindow() *window {
	w := &window{limit: minWindow}
	w.room = sync.NewCond(&w.mu)
	return w
}

// passage is a request in the window.
type passage struct {
	bytes   int
	sent    time.Time
	arrived int64     // by then
	last    time.Time // the last arrival by then
}

// enter waits until n more bytes may be on their way, which may exceed the window for once.
// With force it does not wait.
func (w *window) enter(ctx context.Context, n int, force bool) (passage, error) {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.room.Broadcast()
	})
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !force && ctx.Err() == nil && (w.bytes >= w.limit || w.calls >= maxCalls) {
		w.room.Wait()
	}
	if ctx.Err() != nil {
		return passage{}, context.Cause(ctx)
	}
	w.bytes += n
	w.calls++
	now := time.Now()
	if w.calls == 1 {
		w.last = now // nothing was on its way: the time until now says nothing about the rate
	}
	return passage{n, now, w.arrived, w.last}, nil
}

// answered learns from an answer.
func (w *window) answered(p passage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.arrived += int64(p.bytes)
	w.last = now
	if trip := now.Sub(p.sent); w.trip == 0 || trip < w.trip {
		w.trip = trip
	}
	if now.Sub(w.rates[0].begin) > max(rateTime, 4*w.trip) {
		w.rates[1], w.rates[0] = w.rates[0], rateSpan{begin: now}
	}
	// Between the last arrival before the request and its own, this much arrived.
	if span := now.Sub(p.last); span > 0 {
		w.rates[0].rate = max(w.rates[0].rate, float64(w.arrived-p.arrived)/span.Seconds())
	}
	carried := max(w.rates[0].rate, w.rates[1].rate) * max(w.trip, shortTrip).Seconds()
	w.limit = int(min(max(2*carried, minWindow), maxWindow))
	w.room.Broadcast()
}

// leave makes room, when the content is no longer in memory.
func (w *window) leave(p passage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= p.bytes
	w.calls--
	w.room.Broadcast()
}

// block returns the size of the blocks of a large file: a part of the window, so that
// other requests find their way between them.
func (w *window) block() int {
	const smallest = 64 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(max(w.limit/8, smallest), maxBlock)
}
