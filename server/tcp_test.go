//go:build unix

package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/internal/testkit/transcript"
	"execserver/server"
)

// tcpEvent is a notification about a forwarded connection.
type tcpEvent struct {
	Method   string `json:"-"`
	StreamID string
	Chunk    []byte
	Bytes    int64
	Message  string
}

// tcpCaller is a client that forwards connections by hand.
type tcpCaller struct {
	*caller
	events chan tcpEvent // about streams, in order
}

func newTCPCaller(t *testing.T, srv transcript.Server) *tcpCaller {
	t.Helper()
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	c := &tcpCaller{&caller{t: t}, make(chan tcpEvent, 1<<16)}
	c.Conn = testclient.New(conn, func(method string, params json.RawMessage) {
		if strings.HasPrefix(method, "tcp/") {
			e := tcpEvent{Method: method}
			if err := json.Unmarshal(params, &e); err != nil {
				t.Error(err)
			}
			c.events <- e
		}
	})
	t.Cleanup(c.Drop)
	if err := c.initialize(params{"clientName": "test"}); err != nil {
		t.Fatal(err)
	}
	return c
}

// far listens for connections that the server makes.
func farListener(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

func openParams(id string, l net.Listener, credit int64) params {
	return params{"streamId": id, "host": "127.0.0.1", "port": l.Addr().(*net.TCPAddr).Port, "credit": credit}
}

// open opens a stream and returns its far end and the credit for it.
func (c *tcpCaller) open(id string, l net.Listener, credit int64) (far *net.TCPConn, allowed int64) {
	c.t.Helper()
	var result struct{ Credit int64 }
	c.result("tcp/open", openParams(id, l, credit), &result)
	return c.accepted(l), result.Credit
}

// accepted returns the far end of a stream that was opened.
func (c *tcpCaller) accepted(l net.Listener) *net.TCPConn {
	c.t.Helper()
	conn, err := l.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	return conn.(*net.TCPConn)
}

func (c *tcpCaller) tell(method string, p params) {
	c.t.Helper()
	if err := c.Notify(method, p); err != nil {
		c.t.Fatal(err)
	}
}

// event is the next notification, which must be of that method and stream.
func (c *tcpCaller) event(method, id string) tcpEvent {
	c.t.Helper()
	e := await(c.t, method, c.events)
	if e.Method != method || e.StreamID != id {
		c.t.Fatalf("got %s of %s, want %s of %s", e.Method, e.StreamID, method, id)
	}
	return e
}

// none expects that no notification has come before the answer to a request.
func (c *tcpCaller) none() {
	c.t.Helper()
	c.result("environment/status", nil, new(struct{}))
	select {
	case e := <-c.events:
		c.t.Errorf("unexpected %s of %s: %q %d %s", e.Method, e.StreamID, e.Chunk, e.Bytes, e.Message)
	default:
	}
}

// TestTCPCredit has the server send as much as it is allowed to.
func TestTCPCredit(t *testing.T) {
	c := newTCPCaller(t, serveWebSocket(t, nil))
	l := farListener(t)
	far, allowed := c.open("s", l, 0)
	if _, err := far.Write([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, more := range []int{3, 1, 6} {
		c.none()
		c.tell("tcp/credit", params{"streamId": "s", "bytes": more})
		for want := len(got) + more; len(got) < want; {
			got = append(got, c.event("tcp/data", "s").Chunk...)
		}
	}
	c.none()
	if string(got) != "0123456789" {
		t.Errorf("got %q", got)
	}
	// The server gives credit for what the far end accepts, also for single bytes.
	piece := bytes.Repeat([]byte("x"), int(allowed)/4)
	for range 16 {
		c.tell("tcp/data", params{"streamId": "s", "chunk": piece})
		if _, err := io.ReadFull(far, make([]byte, len(piece))); err != nil {
			t.Fatal(err)
		}
		for left := int64(len(piece)); left > 0; {
			left -= c.event("tcp/credit", "s").Bytes
		}
	}
	// Each direction ends by itself.
	c.tell("tcp/end", params{"streamId": "s"})
	if rest, err := io.ReadAll(far); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	_, _ = far.Write([]byte("last"))
	_ = far.Close()
	c.none()
	c.tell("tcp/credit", params{"streamId": "s", "bytes": 4})
	if e := c.event("tcp/data", "s"); string(e.Chunk) != "last" {
		t.Errorf("last: %q", e.Chunk)
	}
	c.event("tcp/end", "s")
	// The id is free again, and late notifications about it are no violation.
	c.tell("tcp/credit", params{"streamId": "s", "bytes": 4})
	c.tell("tcp/reset", params{"streamId": "s", "message": "late"})
	c.open("s", l, 1)
}

// TestTCPViolations ends the connection of a client that does not keep to the rules.
func TestTCPViolations(t *testing.T) {
	l := farListener(t)
	for want, violate := range map[string]func(c *tcpCaller){
		"`tcp/data`: it was sent before `tcp/open`":  func(c *tcpCaller) { c.tell("tcp/data", params{"streamId": "s", "chunk": ""}) },
		"`tcp/reset`: it was sent before `tcp/open`": func(c *tcpCaller) { c.tell("tcp/reset", params{"streamId": "s", "message": ""}) },
		"stream `s`: 1048577 bytes, but there is credit for 1048576": func(c *tcpCaller) {
			_, allowed := c.open("s", l, 0)
			c.tell("tcp/data", params{"streamId": "s", "chunk": make([]byte, allowed+1)})
		},
		"`tcp/data`: stream `s` has ended": func(c *tcpCaller) {
			c.open("s", l, 0)
			c.tell("tcp/end", params{"streamId": "s"})
			c.tell("tcp/data", params{"streamId": "s", "chunk": "eA=="})
		},
		"`tcp/end`: stream `s` has ended": func(c *tcpCaller) {
			c.open("s", l, 0)
			c.tell("tcp/end", params{"streamId": "s"})
			c.tell("tcp/end", params{"streamId": "s"})
		},
		"stream `s`: a credit of 1073741825 bytes, the limit is 1073741824": func(c *tcpCaller) {
			c.open("s", l, 1<<30)
			c.tell("tcp/credit", params{"streamId": "s", "bytes": 1})
		},
		"bytes: the credit is 18446744073709551615 bytes, the limit is 1073741824": func(c *tcpCaller) {
			c.open("s", l, 0)
			c.tell("tcp/credit", params{"streamId": "s", "bytes": uint64(1<<64 - 1)})
		},
		"expected an object, got null": func(c *tcpCaller) {
			c.open("s", l, 0)
			c.tell("tcp/data", nil)
		},
	} {
		t.Run(want, func(t *testing.T) {
			c := newTCPCaller(t, serveWebSocket(t, nil))
			violate(c)
			await(t, "the end of the connection", c.Done())
			// The client gives up at the message, which has the id -1.
			if err := fmt.Sprint(c.Err()); !strings.Contains(err, want) || !strings.Contains(err, "-32600") {
				t.Errorf("it ended with %s", err)
			}
		})
	}
	c := newTCPCaller(t, serveWebSocket(t, nil))
	far, _ := c.open("s", l, 0)
	for name, p := range map[string]params{
		"an id in use":      openParams("s", l, 0),
		"too much credit":   openParams("t", l, 1<<30+1),
		"no address":        {"streamId": "t", "credit": 0},
		"two addresses":     {"streamId": "t", "credit": 0, "host": "h", "port": 1, "path": "/x"},
		"no port":           {"streamId": "t", "credit": 0, "host": "h"},
		"the port 0":        {"streamId": "t", "credit": 0, "host": "h", "port": 0},
		"no host":           {"streamId": "t", "credit": 0, "host": "", "port": 1},
		"a missing socket":  {"streamId": "t", "credit": 0, "path": "/no/such/socket"},
		"a name of nothing": {"streamId": "t", "credit": 0, "host": "nothing.invalid", "port": 1},
	} {
		if r := c.call("tcp/open", p); r.Error == nil {
			t.Errorf("%s: %s", name, r.Result)
		}
	}
	_, _ = far.Write([]byte("x"))
	c.tell("tcp/credit", params{"streamId": "s", "bytes": 1})
	c.event("tcp/data", "s") // it is as it was
}

// TestTCPFlood has far ends that do not read, and a client that sends all that it may, on
// many streams and first in single bytes. The credit bounds the memory, and other requests
// are answered.
func TestTCPFlood(t *testing.T) {
	c := newTCPCaller(t, serveWebSocket(t, nil))
	l := farListener(t)
	const streams = 4
	before := heap()
	var window int64
	for i := range streams {
		id := fmt.Sprint(i)
		far, allowed := c.open(id, l, 0)
		_ = far.SetReadBuffer(4096)
		for range 200 {
			c.tell("tcp/data", params{"streamId": id, "chunk": "eA=="})
		}
		c.tell("tcp/data", params{"streamId": id, "chunk": make([]byte, allowed-200)})
		window = allowed
	}
	for sent := window * streams; ; {
		c.result("environment/status", nil, new(struct{}))
		select {
		case e := <-c.events:
			if e.Method != "tcp/credit" {
				t.Fatalf("got %s", e.Method)
			}
			c.tell("tcp/data", params{"streamId": e.StreamID, "chunk": make([]byte, e.Bytes)})
			sent += e.Bytes
			if sent > 1<<30 {
				t.Fatal("the server takes everything")
			}
			continue
		case <-time.After(300 * time.Millisecond): // the kernel's buffers are full
		}
		break
	}
	if grown := heap() - before; grown > 3*window*streams {
		t.Errorf("%d bytes for %d streams", grown, streams)
	}
	c.Drop()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if grown := heap() - before; grown > window {
			return fmt.Errorf("%d bytes are left", grown)
		}
		return nil
	})
}

// TestTCPLimits opens as many connections as one client may have, twice. In between it
// ends them in every way, also by vanishing, and no descriptor is left.
func TestTCPLimits(t *testing.T) {
	const limit = 128
	srv := serveWebSocket(t, nil)
	l := farListener(t)
	newTCPCaller(t, srv).open("first", l, 0) // what the first one opens for good
	c := newTCPCaller(t, srv)
	before := testkit.Descriptors(t)
	fill := func() (fars []*net.TCPConn) {
		for i := range limit {
			testkit.WaitFor(t, testkit.Patience, func() error { // a place is free soon after its descriptor is
				if err := c.call("tcp/open", openParams(fmt.Sprint(i), l, 1000)).Error; err != nil {
					return err
				}
				return nil
			})
			fars = append(fars, c.accepted(l))
		}
		r := c.call("tcp/open", openParams("more", l, 0))
		if r.Error == nil || !strings.Contains(r.Error.Message, "limit of 128 forwarded connections") {
			t.Fatalf("one more: %s, %v", r.Result, r.Error)
		}
		return fars
	}
	released := func() {
		t.Helper()
		testkit.WaitFor(t, testkit.Patience, func() error {
			if now := testkit.Descriptors(t); now > before {
				return fmt.Errorf("%d descriptors, %d before", now, before)
			}
			return nil
		})
	}
	for i, far := range fill() {
		switch id := fmt.Sprint(i); i % 4 {
		case 0:
			c.tell("tcp/reset", params{"streamId": id, "message": "enough"})
		case 1:
			c.tell("tcp/end", params{"streamId": id})
			_ = far.CloseWrite()
		case 2:
			_ = far.SetLinger(0)
		case 3:
			_ = far.CloseWrite()
			c.tell("tcp/data", params{"streamId": id, "chunk": make([]byte, 1000)})
			c.tell("tcp/end", params{"streamId": id})
			c.tell("tcp/reset", params{"streamId": id, "message": "closed"})
			if data, err := io.ReadAll(far); err != nil || len(data) != 1000 {
				t.Errorf("%d bytes before the end, %v", len(data), err)
			}
		}
		_ = far.Close()
	}
	released()
	fars := fill()
	c.Drop()
	for _, far := range fars {
		if _, err := far.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("it goes on: %v", err)
		}
		_ = far.Close()
	}
	before-- // its own
	released()
}

// TestTCPAbandoned resets a stream whose connection is not made yet.
func TestTCPAbandoned(t *testing.T) {
	c := newTCPCaller(t, serveWebSocket(t, nil))
	// Nobody answers here (RFC 5737), and the route, if there is one, is slow to say so.
	answer := c.send("tcp/open", params{"streamId": "s", "host": "192.0.2.1", "port": 9, "credit": 0})
	c.tell("tcp/reset", params{"streamId": "s", "message": "never mind"})
	if r := await(t, "the answer", answer); r.Error == nil || !strings.Contains(r.Error.Message, "cannot connect to 192.0.2.1:9") {
		t.Errorf("got %s, %v", r.Result, r.Error)
	}
	c.none()
}

// TestTCPOfTokens shows which tokens allow connections, and that they are in the audit
// log.
func TestTCPOfTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	log, err := server.OpenAuditLog(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	as := serveTokens(t, server.Options{Audit: log}, map[string]string{
		"owner":   `scope = ["full"]`,
		"inside":  "scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nnetwork = true",
		"offline": "scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]",
		"runner":  `scope = ["exec"]`,
	})
	l := farListener(t)
	newTCPCaller(t, as("owner")).open("s", l, 0)
	newTCPCaller(t, as("runner")).denied("tcp/open", openParams("s", l, 0), "`tcp/open`")
	newTCPCaller(t, as("offline")).denied("tcp/open", openParams("s", l, 0), "the network")
	inside := newTCPCaller(t, as("inside"))
	port := l.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "::ffff:127.0.0.1", "127.1.2.3"} {
		inside.denied("tcp/open", params{"streamId": "s", "host": host, "port": port, "credit": 0}, "a connection to ")
	}
	inside.denied("tcp/open", params{"streamId": "s", "path": "/run/socket", "credit": 0}, "a connection to a unix socket")
	observer := connect(t, as("owner"))
	owner := newCaller(t, as("owner"), "")
	if err := observer.initialize(params{"clientName": "test", "observeSessionId": owner.SessionID}); err != nil {
		t.Fatal(err)
	}
	if r := observer.call("tcp/open", openParams("s", l, 0)); r.Error == nil || !strings.Contains(r.Error.Message, "this connection observes session") {
		t.Errorf("an observer: %s, %v", r.Result, r.Error)
	}
	log.Close() // which writes what waits
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	opened, refusals := 0, 0
	for line := range strings.Lines(string(text)) {
		var e struct {
			Event, Principal, Session, Method string
			Paths                             []string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		switch e.Event {
		case "tcp open":
			if e.Principal == "owner" && e.Session != "" && slices.Equal(e.Paths, []string{l.Addr().String()}) {
				opened++
			}
		case "refusal":
			refusals++
		}
	}
	if opened != 1 || refusals != 8 {
		t.Errorf("%d connections and %d refusals are in the log, want 1 and 8:\n%s", opened, refusals, text)
	}
}
