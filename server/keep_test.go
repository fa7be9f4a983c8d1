//go:build unix

package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// A client asks for a lease and is gone before the reply: it has the lease.
func TestLeaseWithoutReply(t *testing.T) {
	srv := serveWebSocket(t, nil)
	for range 20 {
		c := newCaller(t, srv, "")
		c.send(protocol.MethodKeep, protocol.KeepParams{KeepMs: 60_000})
		c.Close() // cleanly, which ends a session without a lease
		again := newCaller(t, srv, c.SessionID)
		if again.SessionID != c.SessionID {
			t.Fatalf("resumed %s, want %s", again.SessionID, c.SessionID)
		}
		again.result(protocol.MethodKeep, protocol.KeepParams{}, new(protocol.KeepResult))
		again.Close()
	}
}

// What the server says about leases, to those who may have one and to others.
func TestLeasesAnnounced(t *testing.T) {
	for _, test := range []struct {
		maxKeep time.Duration
		want    uint64
	}{
		{0, 86_400_000}, {time.Minute, 60_000}, {-1, 0},
	} {
		o := server.Options{Auth: server.Unauthenticated, Session: server.SessionOptions{MaxKeep: test.maxKeep, DetachedTTL: time.Hour}}
		c := newCaller(t, serveWebSocket(t, &o), "")
		want := protocol.SessionLifetime{DetachedMs: 3_600_000, SilentMs: 3_600_000, MaxKeepMs: test.want}
		if got := c.Info.SessionLifetime; got == nil || *got != want {
			t.Errorf("MaxKeep %s: %+v, want %+v", test.maxKeep, got, want)
		}
		if got := c.Info.Capabilities.SessionKeep; got != (test.want > 0) {
			t.Errorf("MaxKeep %s: sessionKeep is %t", test.maxKeep, got)
		}
	}
}

// The longest life that a token allows bounds the lease, too.
func TestLeaseOfToken(t *testing.T) {
	as := serveTokens(t, server.Options{}, map[string]string{"worker": "scope = [\"exec\"]\nmax_session = \"1h\""})
	c := newCaller(t, as("worker"), "")
	var granted protocol.KeepResult
	c.result(protocol.MethodKeep, protocol.KeepParams{KeepMs: 8 * 3_600_000}, &granted)
	if granted.KeepMs > 3_600_000 || granted.KeepMs < 3_000_000 {
		t.Errorf("%d ms are granted", granted.KeepMs)
	}
}

// serveAudited starts a server with an audit log, and returns a function that waits for
// the last line about an event.
func serveAudited(t *testing.T, o server.Options) (url string, audited func(event string) map[string]any) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit")
	log, err := server.OpenAuditLog(path, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	o.Audit, o.Auth = log, server.Unauthenticated
	url = serveWebSocket(t, &o).(webSocketServer).url
	return url, func(event string) (last map[string]any) {
		t.Helper()
		testkit.WaitFor(t, testkit.Patience, func() error {
			text, err := os.ReadFile(path)
			for line := range bytes.Lines(text) {
				var e map[string]any
				if json.Unmarshal(line, &e) == nil && e["event"] == event {
					last = e
				}
			}
			if last == nil {
				return fmt.Errorf("no event %q, %v", event, err)
			}
			return nil
		})
		return last
	}
}

func TestLeaseAudited(t *testing.T) {
	url, audited := serveAudited(t, server.Options{})
	c := newCaller(t, webSocketServer{url: url}, "")
	c.result(protocol.MethodKeep, protocol.KeepParams{Name: new("build"), KeepMs: 60_000}, new(protocol.KeepResult))
	e := audited("session kept")
	if e["session"] != c.SessionID || e["name"] != "build" || e["keepMs"] != 60_000.0 || e["remote"] == nil {
		t.Errorf("audited as %v", e)
	}
}
