package server_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/server"
)

// TestTCPToLocalRoutes has clients reach addresses that the machine has by a route alone.
// A token with a sandbox must not, however it spells them.
func TestTCPToLocalRoutes(t *testing.T) {
	if !testkit.InNetworkNamespace(t) {
		return
	}
	testkit.Configure(t, "ip", "route", "add", "local", "10.9.9.0/24", "dev", "lo")
	testkit.Configure(t, "ip", "route", "add", "local", "10.9.8.0/24", "dev", "lo", "src", "127.0.0.1")
	testkit.Configure(t, "ip", "-6", "route", "add", "local", "fd00:9::/64", "dev", "lo")
	as := serveTokens(t, server.Options{}, map[string]string{
		"owner":  `scope = ["full"]`,
		"inside": "scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nnetwork = true",
	})
	inside, owner := newTCPCaller(t, as("inside")), newTCPCaller(t, as("owner"))
	l, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for i, address := range []string{"10.9.9.7", "10.9.8.7", "fd00:9::7"} {
		p := params{"streamId": fmt.Sprint(i), "host": address, "port": l.Addr().(*net.TCPAddr).Port, "credit": 0}
		inside.denied("tcp/open", p, "a connection to ")
		if i < 2 {
			p["host"] = "::ffff:" + address
			inside.denied("tcp/open", p, "a connection to ")
		}
		owner.result("tcp/open", p, new(struct{}))
	}
	// What has no route is no address of this machine.
	p := params{"streamId": "far", "host": "192.0.2.1", "port": 9, "credit": 0}
	if r := inside.call("tcp/open", p); r.Error == nil || r.Error.Message != "cannot connect to 192.0.2.1:9: network is unreachable (os error 101)" {
		t.Errorf("an address without a route: %s, %v", r.Result, r.Error)
	}
}

// TestTCPToWhoStopsReading has a far end that reads no more and still answers. Its client
// never waits, receives the answer, and then learns that its data was not taken.
func TestTCPToWhoStopsReading(t *testing.T) {
	path := filepath.Join(testkit.SocketDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c := newTCPCaller(t, serveWebSocket(t, nil))
	var opened struct{ Credit int }
	c.result("tcp/open", params{"streamId": "s", "path": path, "credit": 1000}, &opened)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	far := conn.(*net.UnixConn)
	if err := far.CloseRead(); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for range 3 {
		piece := make([]byte, opened.Credit/2)
		c.tell("tcp/data", params{"streamId": "s", "chunk": piece})
		// For less than a quarter of it the server gives no credit yet.
		for taken += len(piece); taken >= opened.Credit/4; {
			taken -= int(c.event("tcp/credit", "s").Bytes)
		}
	}
	if _, err := far.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if e := c.event("tcp/data", "s"); string(e.Chunk) != "answer" {
		t.Errorf("answered %q", e.Chunk)
	}
	_ = far.Close()
	c.event("tcp/end", "s")
	if e := c.event("tcp/reset", "s"); !strings.Contains(e.Message, "broken pipe") {
		t.Errorf("reset: %s", e.Message)
	}
}
