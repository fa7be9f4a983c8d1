//go:build linux

package server_test

import (
	"fmt"
	"strings"
	"testing"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/server"
)

// takes calls more until it is refused, at most for the limit, and expects the quota to
// have been granted and the error to name it.
func takes(t *testing.T, limit, each int, more func(i int) *protocol.Error) {
	t.Helper()
	for i := range limit + 1 {
		err := more(i)
		if err == nil {
			continue
		}
		if want := fmt.Sprintf("of this principal, the limit is %d", each); i != each || !strings.HasSuffix(strings.TrimSuffix(err.Message, "; close one"), want) {
			t.Errorf("refused after %d of %d: %v; want %d, and %q", i, limit, err, each, want)
		}
		return
	}
	t.Errorf("one principal gets all %d", limit)
}

// A principal that takes whatever it gets leaves something to others.
func TestQuotas(t *testing.T) {
	const limit, each = 8, 4
	full := map[string]string{"greedy": `scope = ["full"]`, "modest": `scope = ["full"]`}
	session := func(t *testing.T, srv transcript.Server) *protocol.Error {
		return connect(t, srv).initialize(params{"clientName": "test"})
	}
	t.Run("sessions", func(t *testing.T) {
		as := serveTokens(t, server.Options{Session: server.SessionOptions{MaxSessions: limit}}, full)
		takes(t, limit, each, func(int) *protocol.Error { return session(t, as("greedy")) })
		for range limit - each {
			if err := session(t, as("modest")); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("sessions make room for those of the same principal", func(t *testing.T) {
		as := serveTokens(t, server.Options{Session: server.SessionOptions{MaxSessions: limit}}, full)
		idle := newCaller(t, as("modest"), "")
		idle.Drop()
		for range each - 1 {
			newCaller(t, as("greedy"), "")
		}
		own := newCaller(t, as("greedy"), "")
		own.Drop()
		newCaller(t, as("greedy"), "") // in place of the last one
		newCaller(t, as("modest"), idle.SessionID)
		if err := connect(t, as("greedy")).initialize(params{"clientName": "test", "resumeSessionId": own.SessionID}); err == nil {
			t.Error("no session has made room")
		}
	})
	t.Run("connections", func(t *testing.T) {
		as := serveTokens(t, server.Options{MaxConnections: limit}, full)
		first := newCaller(t, as("greedy"), "")
		takes(t, limit, each, func(i int) *protocol.Error {
			switch i % 3 {
			case 0:
				if i == 0 { // it is there already
					return nil
				}
				return session(t, as("greedy"))
			case 1:
				return connect(t, as("greedy")).initialize(params{"clientName": "test", "observeSessionId": first.SessionID})
			}
			return connect(t, as("greedy")).initialize(noSession)
		})
		if err := session(t, as("modest")); err != nil {
			t.Error(err)
		}
		first.Drop()
		newCaller(t, as("greedy"), first.SessionID) // who comes back is served
	})
	t.Run("forwarded connections", func(t *testing.T) {
		srv, as := newTokenServer(t, server.Options{}, full)
		server.LimitForwards(srv, limit)
		l := farListener(t)
		greedy := [2]*tcpCaller{newTCPCaller(t, as("greedy")), newTCPCaller(t, as("greedy"))}
		takes(t, limit, each, func(i int) *protocol.Error {
			return greedy[i%2].call("tcp/open", openParams(fmt.Sprint(i), l, 0)).Error
		})
		newTCPCaller(t, as("modest")).open("s", l, 0)
		greedy[0].tell("tcp/reset", params{"streamId": "0", "message": "enough"})
		testkit.WaitFor(t, testkit.Patience, func() error { // the far end may not have been noticed to be free
			if err := greedy[1].call("tcp/open", openParams("more", l, 0)).Error; err != nil {
				return err
			}
			return nil
		})
	})
	t.Run("watches of missing files", func(t *testing.T) {
		each := (filesystem.MaxWatchers() + 1) / 2
		if each > 256 {
			t.Skipf("the system lets a user watch %d times", 2*each)
		}
		as, dir := serveTokens(t, server.Options{}, full), t.TempDir()
		missing := func(c *caller, id int) *protocol.Error {
			return c.call("fs/watchMissing", params{"watchId": id, "missing": []string{dir + "/none"}}).Error
		}
		var last *caller
		for i := range each {
			if i%32 == 0 { // as many as a session may have
				last = newCaller(t, as("greedy"), "")
			}
			last.result("fs/watch", params{"watchId": fmt.Sprint(i), "path": dir}, new(struct{}))
		}
		other := newCaller(t, as("greedy"), "")
		want := fmt.Sprintf("watch `1` refused: the server has %d watches of this principal, the limit is %[1]d", each)
		if err := missing(other, 1); err == nil || err.Message != want {
			t.Errorf("one more: %v, want %q", err, want)
		}
		if err := missing(newCaller(t, as("modest"), ""), 1); err != nil {
			t.Error(err)
		}
		last.result("fs/unwatch", params{"watchId": fmt.Sprint(each - 1)}, new(struct{}))
		if err := missing(other, 2); err != nil {
			t.Error(err)
		}
	})
	t.Run("network connections for HTTP requests", func(t *testing.T) {
		srv, as := newTokenServer(t, server.Options{}, full)
		server.LimitRequests(srv, limit)
		target := hold(t)
		defer close(target.release)
		greedy := [2]*caller{newCaller(t, as("greedy"), ""), newCaller(t, as("greedy"), "")}
		get := func(c *caller, id string) *protocol.Error {
			return c.call("http/request", httpParams(target.url+"/stream", params{"requestId": id, "streamResponse": true})).Error
		}
		takes(t, limit, each, func(i int) *protocol.Error { return get(greedy[i%2], fmt.Sprint(i)) })
		if err := get(newCaller(t, as("modest"), ""), "r"); err != nil {
			t.Error(err)
		}
	})
}

// A principal whose clients acknowledge nothing blocks its own processes, and not those of
// others.
func TestQuotaOfRetainedOutput(t *testing.T) {
	const total, each = 1 << 20, 1 << 19
	full := map[string]string{"greedy": `scope = ["exec"]`, "modest": `scope = ["exec"]`}
	as := serveTokens(t, server.Options{Session: server.SessionOptions{RetainedBytes: total, RetainedTotalBytes: total}}, full)
	greedy := connect(t, as("greedy"))
	if err := greedy.initialize(params{"clientName": "test", "capabilities": params{"processAck": true}}); err != nil {
		t.Fatal(err)
	}
	flood := func(c *caller, id string) {
		t.Helper()
		c.result("process/start", params{
			"processId": id, "argv": []string{"/bin/sh", "-c", "head -c 2000000 /dev/zero"}, "cwd": "file:///", "env": params{"PATH": "/usr/bin:/bin"}, "tty": false,
		}, new(struct{}))
	}
	ids := []string{"a", "b", "c"}
	for _, id := range ids {
		flood(greedy, id)
	}
	retained := func() (n int) {
		for _, id := range ids {
			var read protocol.ReadResult
			greedy.result("process/read", params{"processId": id}, &read)
			for _, chunk := range read.Chunks {
				n += len(chunk.Data)
			}
		}
		return n
	}
	// The quota counts memory. Up to a quarter of what a stream reads into is left free, and more
	// of what it reads into now.
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := retained(); n < each*2/5 {
			return fmt.Errorf("%d bytes of one principal are retained", n)
		}
		return nil
	})
	modest := newCaller(t, as("modest"), "")
	for i := range 5 {
		id := fmt.Sprint(i)
		flood(modest, id)
		var end struct{ Exited bool }
		modest.result("process/wait", params{"processId": id, "waitMs": testkit.Patience.Milliseconds() / 2}, &end)
		if !end.Exited {
			t.Fatal("the process of another principal waits for room")
		}
		if n := retained(); n > each+len(ids)*(64<<10) {
			t.Errorf("%d bytes of one principal are retained, the quota is %d", n, each)
		}
	}
}
