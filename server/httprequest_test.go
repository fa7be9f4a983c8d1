//go:build unix

package server_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// far starts an HTTP server that requests are sent to.
func far(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// holding is an HTTP server whose answers are held back until they are
// released, or nobody waits for them any more. Below /stream the header and
// the word "begun" are not.
type holding struct {
	url     string
	arrived chan string // paths
	left    chan string // paths of requests that were given up
	release chan struct{}
}

func hold(t *testing.T) *holding {
	h := &holding{arrived: make(chan string, 1000), left: make(chan string, 1000), release: make(chan struct{})}
	h.url = far(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/stream") {
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
		}
		h.arrived <- r.URL.Path
		select {
		case <-h.release:
		case <-r.Context().Done():
			h.left <- r.URL.Path
		}
	})
	return h
}

func (h *holding) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		await(t, "a request", h.arrived)
	}
}

func stream(id string) params { return params{"requestId": id, "streamResponse": true} }

// TestHTTPSlowServerDelaysNobody holds as many answers back as there may be
// requests, but one.
func TestHTTPSlowServerDelaysNobody(t *testing.T) {
	h := hold(t)
	quick := far(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "quick") })
	c := newCaller(t, serveWebSocket(t, nil), "")
	var held []<-chan reply
	for range 255 {
		answer := c.send("http/request", httpParams(h.url, nil))
		held = append(held, answer)
	}
	h.await(t, len(held))
	for range 200 { // each as soon as the one before is answered
		if got := c.http(quick, nil); string(got.Body) != "quick" {
			t.Errorf("got %q", got.Body)
		}
	}
	c.result("environment/status", nil, &struct{}{})
	argv, env := testkit.Child("echo", "hello")
	c.result("process/start", params{"processId": "p", "argv": argv, "cwd": "/", "env": env, "tty": false}, &struct{}{})
	close(h.release)
	for _, answer := range held {
		if r := await(t, "an answer", answer); r.Error != nil {
			t.Error(r.Error)
		}
	}
}

// TestHTTPRequestsEndWithTheConnection has requests in all states, none of
// which a resumed session has.
func TestHTTPRequestsEndWithTheConnection(t *testing.T) {
	h := hold(t)
	srv := serveWebSocket(t, nil)
	c := newCaller(t, srv, "")
	c.send("http/request", httpParams(h.url+"/header", nil))
	c.send("http/request", httpParams(h.url+"/stream/buffered", nil))
	c.http(h.url+"/stream/streamed", stream("s"))
	h.await(t, 3)
	c.Drop()
	for range 3 {
		await(t, "the end of a request", h.left)
	}
	again := newCaller(t, srv, c.SessionID)
	again.http(h.url+"/stream/new", stream("s"))
	if d := again.delta("s"); d.Seq != 1 || string(d.Data) != "begun" {
		t.Errorf("the first piece is %+v", d)
	}
}

// TestHTTPShutdown ends the server while requests go on.
func TestHTTPShutdown(t *testing.T) {
	h := hold(t)
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	c := newCaller(t, listenWebSocket(t, srv), "")
	c.send("http/request", httpParams(h.url+"/header", nil))
	c.http(h.url+"/stream", stream("s"))
	h.await(t, 2)
	testkit.Shutdown(t, srv)
	for range 2 {
		await(t, "the end of a request", h.left)
	}
}

// TestHTTPTooManyRequests counts streams and others alike.
func TestHTTPTooManyRequests(t *testing.T) {
	h := hold(t)
	c := newCaller(t, serveWebSocket(t, nil), "")
	for i := range 128 {
		c.http(h.url+"/stream", stream(fmt.Sprint(i)))
		c.send("http/request", httpParams(h.url, nil))
	}
	h.await(t, 256)
	const want = "http/request refused: 256 HTTP requests of this connection are active, the limit; wait until one has ended"
	for _, more := range []params{nil, stream("more")} {
		if err := c.httpError(h.url, more); err.Code != protocol.CodeInvalidRequest || err.Message != want {
			t.Errorf("%d %s", err.Code, err.Message)
		}
	}
	close(h.release)
	for i := range 128 {
		if data, failure := c.body(fmt.Sprint(i)); string(data) != "begun" || failure != "" {
			t.Errorf("stream %d: %q, %s", i, data, failure)
		}
	}
	// A stream does not count any more once its end is there, nor another
	// request once it is answered.
	for range 100 {
		c.http(h.url+"/stream", stream("0"))
		c.body("0")
		c.http(h.url, nil)
	}
}

// TestHTTPBodyLimits is about what is held in memory.
func TestHTTPBodyLimits(t *testing.T) {
	const limit = 256 << 10
	h := hold(t)
	sizes := far(t, func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscan(r.URL.Path[1:], &n)
		_ = http.NewResponseController(w).Flush() // the length is not told
		_, _ = w.Write(make([]byte, n))
	})
	c := newCaller(t, serveWebSocket(t, &server.Options{Auth: server.Unauthenticated, MaxHTTPBodyBytes: limit, MaxMessageBytes: 2 << 20}), "")
	if got := c.http(fmt.Sprintf("%s/%d", sizes, limit), nil); len(got.Body) != limit {
		t.Errorf("%d bytes", len(got.Body))
	}
	err := c.httpError(fmt.Sprintf("%s/%d", sizes, 10*limit), nil)
	const tooLarge = "http/request failed: body of at least 262145 bytes exceeds the limit of 262144 bytes; " +
		"ask for streamResponse"
	if err.Code != protocol.CodeInternal || err.Message != tooLarge {
		t.Errorf("%d %s", err.Code, err.Message)
	}
	// The bodies of requests are held until their streams end. Two leave half a
	// MiB of the 2 MiB of a message and 4 bodies.
	big := params{"bodyBase64": base64.StdEncoding.EncodeToString(make([]byte, 1280<<10)), "method": "POST", "streamResponse": true}
	for i := range 2 {
		big["requestId"] = fmt.Sprint(i)
		c.http(h.url+"/stream", big)
	}
	big["requestId"] = "more"
	err = c.httpError(h.url+"/stream", big)
	const held = "http/request refused: the bodies of this connection's HTTP requests would take 3932160 bytes, the limit is 3145728; " +
		"wait until one has ended, or ask for streamResponse"
	if err.Code != protocol.CodeInvalidRequest || err.Message != held {
		t.Errorf("%d %s", err.Code, err.Message)
	}
	if got := c.http(fmt.Sprintf("%s/%d", sizes, limit), nil); len(got.Body) != limit {
		t.Errorf("%d bytes", len(got.Body))
	}
	// The bodies of streams do not count.
	c.http(fmt.Sprintf("%s/%d", sizes, 10*limit), stream("s"))
	if data, failure := c.body("s"); len(data) != 10*limit || failure != "" {
		t.Errorf("%d bytes, %s", len(data), failure)
	}
	close(h.release)
	c.body("0")
	c.http(h.url+"/stream", big)
	c.body("more")
}

// TestHTTPHeaderFlood has servers whose headers do not end.
func TestHTTPHeaderFlood(t *testing.T) {
	for name, flood := range map[string]string{
		"one":           strings.Repeat("x", 1000),
		"many":          "a: b\r\n",
		"informational": "b\r\n\r\nHTTP/1.1 103 Early Hints\r\na: ",
	} {
		t.Run(name, func(t *testing.T) {
			url := far(t, func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\na: "); err != nil {
					t.Error(err)
				}
				for {
					if _, err := io.WriteString(conn, flood); err != nil {
						return
					}
				}
			})
			c := newCaller(t, serveWebSocket(t, nil), "")
			err := c.httpError(url, nil)
			if err.Code != protocol.CodeInternal || len(err.Message) > 4<<10 || !strings.Contains(err.Message, "headers exceeded 524288 bytes") {
				t.Errorf("%d %.1000s", err.Code, err.Message)
			}
		})
	}
}

// TestHTTPKeepsSecrets looks for them in the log and in errors.
func TestHTTPKeepsSecrets(t *testing.T) {
	const secret = "s3cr3t"
	t.Setenv("HTTP_TEST_TOKEN", secret)
	var log testkit.Buffer
	c := newCaller(t, serveWebSocket(t, &server.Options{Auth: server.Unauthenticated, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}), "")
	var seen sync.Map
	url := far(t, func(w http.ResponseWriter, r *http.Request) { seen.Store(r.URL.Path, r.Header.Clone()) })
	host := strings.TrimPrefix(url, "http://")
	headers := []params{
		{"name": "x-token", "value": "Bearer ", "valueEnvVar": "HTTP_TEST_TOKEN"},
		{"name": "authorization", "value": secret},
	}
	c.http("http://user:"+secret+"@"+host+"/sent", params{"headers": headers})
	if header, _ := seen.Load("/sent"); header.(http.Header).Get("X-Token") != "Bearer "+secret {
		t.Errorf("the header was %v", header)
	}
	bad := append(headers, params{"name": "bad", "value": "\n", "valueEnvVar": "HTTP_TEST_TOKEN"})
	for _, err := range []*protocol.Error{
		c.httpError("http://user:"+secret+"@127.0.0.1:1/", params{"headers": headers}),
		c.httpError("http://user:"+secret+"@"+host+":/", params{"headers": headers}),
		c.httpError("http://user:"+secret+"@"+host+"/", params{"headers": bad}),
		c.httpError("http://user:"+secret+"@"+host+"/", params{"headers": headers, "timeoutMs": 0}),
	} {
		if strings.Contains(err.Message, secret) {
			t.Errorf("an error tells: %s", err.Message)
		}
	}
	c.Drop()
	if strings.Contains(log.String(), secret) {
		t.Errorf("the log tells: %s", log.String())
	}
}

// TestHTTPLongErrors bounds what an error repeats.
func TestHTTPLongErrors(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	c := newCaller(t, serveWebSocket(t, nil), "")
	for _, p := range []params{
		{"url": "http://127.0.0.1:1/" + long},
		{"url": long + "://h/"},
		{"headers": []params{{"name": long, "value": "\n"}}},
		{"headers": []params{{"name": "a", "value": "", "valueEnvVar": long}}},
	} {
		if err := c.httpError("http://127.0.0.1:1/", p); len(err.Message) > 4<<10 {
			t.Errorf("an error of %d bytes: %.100s", len(err.Message), err.Message)
		}
	}
}

// TestHTTPLeavesNothing compares descriptors; goroutines are compared when all
// tests have ended.
func TestHTTPLeavesNothing(t *testing.T) {
	h := hold(t)
	url := far(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100_000)) })
	srv := serveWebSocket(t, nil)
	newCaller(t, srv, "").Drop()
	before := testkit.Descriptors(t)
	for range 3 {
		c := newCaller(t, srv, "")
		for i := range 20 {
			c.send("http/request", httpParams(url, nil))
			c.send("http/request", httpParams(url, stream(fmt.Sprint(i))))
			c.send("http/request", httpParams(h.url, nil))
			c.send("http/request", httpParams(h.url+"/stream", stream(fmt.Sprint("held", i))))
			c.send("http/request", httpParams(h.url, params{"timeoutMs": 1}))
			c.http(url, nil)
		}
		c.Drop()
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := testkit.Descriptors(t); n > before {
			return fmt.Errorf("%d descriptors, %d before", n, before)
		}
		return nil
	})
}
