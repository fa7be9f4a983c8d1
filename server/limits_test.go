package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/testkit"
)

// pendingTest begins handshakes and notes which of them are dropped, and why.
type pendingTest struct {
	*pending
	dropped []string
	reasons []error
}

func (p *pendingTest) begin(source, name string) *pendingConnection {
	return p.pending.begin(source, func(err error) {
		p.dropped, p.reasons = append(p.dropped, name), append(p.reasons, err)
	})
}

// The oldest connection makes way: of a source that has as many as it may, and otherwise of the
// source that has the most.
func TestPendingMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock stands still
		p := pendingTest{pending: newPending(8)} // four for each source
		begin := func(source string, count int) {
			for i := range count {
				p.begin(source, fmt.Sprint(source, i))
			}
		}
		begin("a", 3)
		begin("b", 5)
		if want := []string{"b0"}; !slices.Equal(p.dropped, want) {
			t.Fatalf("too many of one source: dropped %q, want %q", p.dropped, want)
		}
		begin("c", 1)
		begin("d", 4)
		// b has 4, a has 3; then a and b have 3 each, of which a has the oldest.
		if want := []string{"b0", "b1", "a0", "b2", "d0"}; !slices.Equal(p.dropped, want) {
			t.Errorf("too many in all: dropped %q, want %q", p.dropped, want)
		}
		for _, reason := range p.reasons {
			if !errors.Is(reason, errTooManyPending) {
				t.Errorf("the reason is %v", reason)
			}
		}
		if p.count != 8 {
			t.Errorf("%d are pending", p.count)
		}
	})
}

// A client that completes its handshake before its source has begun as many as it may, is not
// dropped, whatever number of connections others make.
func TestPendingFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock stands still
		p := pendingTest{pending: newPending(64)}
		for i := range 1_000 {
			flood := fmt.Sprint("10.0.0.", i%5)
			p.begin(flood, "flood")
			if i%10 > 0 {
				continue
			}
			good := p.begin("192.0.2.1", "good")
			for range 1000 {
				p.begin(flood, "flood")
			}
			if !good.done() {
				t.Fatalf("dropped in round %d", i)
			}
		}
		if slices.Contains(p.dropped, "good") {
			t.Error("a good client was dropped")
		}
	})
}

// A connection is dropped when its time is over, and not after its handshake.
func TestPendingDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pendingTest{pending: newPending(8)}
		first, second := p.begin("a", "first"), p.begin("a", "second")
		time.Sleep(handshakeTimeout - time.Millisecond)
		if !first.done() || first.done() {
			t.Error("the handshake of the first is not done once")
		}
		p.begin("a", "third")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if want := []string{"second"}; !slices.Equal(p.dropped, want) || !errors.Is(p.reasons[0], errHandshakeTimeout) {
			t.Errorf("dropped %q because of %v, want %q", p.dropped, p.reasons, want)
		}
		if second.done() {
			t.Error("the second was dropped, and is done")
		}
		time.Sleep(handshakeTimeout)
		synctest.Wait()
		if p.count != 0 || len(p.sources) != 0 || len(p.dropped) != 2 {
			t.Errorf("%d are left of %d sources; dropped %q", p.count, len(p.sources), p.dropped)
		}
	})
}

func TestSources(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "unix socket": "unix socket",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[fe80::1%eth0]:80": "fe80::/64", "[::1]:80": "::/64",
	} {
		if got := sourceOf(remote); got != want {
			t.Errorf("%s counts for %s, want %s", remote, got, want)
		}
	}
}

// TestRefusalsAreForgotten has more addresses refused than the server remembers.
func TestRefusalsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Buffer
		r := newRefusals(slog.New(slog.NewTextHandler(&log, nil)), 1)
		refuse := func(count int) {
			for i := range count {
				r.add(RefusedCredentials, fmt.Sprintf("10.0.%d.%d:80", i/256, i%256), "wrong token")
			}
		}
		refuse(2 * maxSources)
		remembered := func() int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.unlogged)
		}
		if lines := strings.Count(log.String(), "connection refused"); lines != maxSources+1 || remembered() != lines {
			t.Errorf("%d lines, and %d addresses are remembered", lines, remembered())
		}
		time.Sleep(refusalPause)
		synctest.Wait()
		if lines := strings.Count(log.String(), "more connections refused"); lines != 1 || remembered() != 1 {
			t.Errorf("after a minute %d more lines, and %d addresses are remembered", lines, remembered())
		}
		time.Sleep(refusalPause)
		synctest.Wait()
		if remembered() != 0 {
			t.Errorf("%d addresses are remembered for ever", len(r.unlogged))
		}
	})
}

// The answer to wrong credentials comes late, unless too many wait.
func TestRefusalsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusals(slog.New(slog.DiscardHandler), 2)
		begun := time.Now()
		took := make(chan time.Duration, 3)
		for range 2 {
			go func() {
				r.backOff(t.Context())
				took <- time.Since(begun)
			}()
		}
		synctest.Wait()
		r.backOff(t.Context())
		if late := time.Since(begun); late > 0 {
			t.Errorf("one too many waits for %v", late)
		}
		for range 2 {
			if late := <-took; late != authBackoff {
				t.Errorf("a refusal waits for %v, want %v", late, authBackoff)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		r.backOff(gone)
		if late := time.Since(begun); late != authBackoff {
			t.Errorf("a client that is gone is waited for until %v", late)
		}
	})
}
