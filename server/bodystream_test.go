//go:build unix

package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
)

// source is an HTTP server whose answers consist of numbers in sequence and do
// not end before they are given up, or have the size that the path says.
type source struct {
	url  string
	sent atomic.Int64
}

func endless(t *testing.T) *source {
	s := new(source)
	server := httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10) // or the kernel keeps megabytes for each
		return ctx
	}
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *source) serve(w http.ResponseWriter, r *http.Request) {
	var size int64 = 1 << 50
	_, _ = fmt.Sscan(r.URL.Path[1:], &size)
	block := testkit.Pattern(32 << 10)
	for at := int64(0); at < size; {
		n, err := w.Write(block[:min(int64(len(block)), size-at)])
		at += int64(n)
		s.sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// quiet waits until nothing more is sent.
func (s *source) quiet(t *testing.T) int64 {
	t.Helper()
	last, since := s.sent.Load(), time.Now()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := s.sent.Load(); n != last || n == 0 {
			last, since = n, time.Now()
		}
		if time.Since(since) < 300*time.Millisecond {
			return fmt.Errorf("still %d bytes", last)
		}
		return nil
	})
	return last
}

// heap is how many bytes are in use.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapInuse)
}

func mute(c *caller, mute bool) { c.Link.(transcript.Muter).Mute(mute) }

// TestStreamOfAReaderThatStops has many bodies go nowhere: memory does not
// grow, neighbours notice nothing, and in the end nothing is lost.
func TestStreamOfAReaderThatStops(t *testing.T) {
	const size, count = 2 << 20, 12
	s := endless(t)
	srv := serveWebSocket(t, nil)
	c, neighbour := newCaller(t, srv, ""), newCaller(t, srv, "")
	mute(c, true)
	before := heap()
	for i := range count {
		c.send("http/request", httpParams(fmt.Sprintf("%s/%d", s.url, size), stream(fmt.Sprint(i))))
	}
	sent := s.quiet(t)
	if grown := heap() - before; grown > 16<<20 || sent == size*count {
		t.Errorf("%d bytes for %d sent", grown, sent)
	}
	neighbour.http(fmt.Sprintf("%s/%d", s.url, 1000), nil)
	mute(c, false)
	want := bytes.Repeat(testkit.Pattern(32<<10), size/(32<<10))
	for i := range count {
		if data, failure := c.body(fmt.Sprint(i)); failure != "" || !bytes.Equal(data, want) {
			t.Errorf("stream %d: %d bytes, %s", i, len(data), failure)
		}
	}
}

// TestStreamPieces are large when the writer is busy, and never too large.
// TestCancelledStreams cancels more streams than a connection may have, some while the
// client reads nothing, and some whose end waits to be sent. The places are free again.
func TestCancelledStreams(t *testing.T) {
	h := hold(t)
	full := far(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	c := newCaller(t, serveWebSocket(t, nil), "")
	var first protocol.HTTPResponse
	for round := range 2 { // the second one has the places of the first
		for i := range 128 {
			id := fmt.Sprintf("%d-%d", round, i)
			c.result("http/request", httpParams(h.url+"/stream", params{"requestId": id, "streamResponse": true}), &first)
			c.result("http/request", httpParams(full, params{"requestId": id + "-full", "streamResponse": true}), &first)
		}
		h.await(t, 128)
		for i := range 128 {
			for _, more := range []string{"", "-full"} {
				if err := c.Notify("http/request/cancel", params{"requestId": fmt.Sprintf("%d-%d%s", round, i, more)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 128 {
			await(t, "the end of a request", h.left)
		}
		// A place is free when its request has ended here, too.
		testkit.WaitFor(t, testkit.Patience, func() error {
			if r := c.call("http/request", httpParams(full, params{"requestId": "last", "streamResponse": true})); r.Error != nil {
				return r.Error
			}
			return c.Notify("http/request/cancel", params{"requestId": "last"})
		})
	}
}

func TestStreamPieces(t *testing.T) {
	const size = 8 << 20
	s := endless(t)
	c := newCaller(t, serveWebSocket(t, nil), "")
	mute(c, true)
	c.send("http/request", httpParams(fmt.Sprintf("%s/%d", s.url, size), stream("s")))
	s.quiet(t)
	mute(c, false)
	largest, pieces, total := 0, 0, 0
	for {
		d := c.delta("s")
		if d.Done && len(d.Data) > 0 || !d.Done && len(d.Data) == 0 {
			t.Errorf("piece %d: %d bytes, done %v", d.Seq, len(d.Data), d.Done)
		}
		if d.Done {
			break
		}
		largest = max(largest, len(d.Data))
		total += len(d.Data)
		pieces++
	}
	if total != size || largest != 256<<10 || pieces > size/(32<<10) {
		t.Errorf("%d bytes in %d pieces of at most %d", total, pieces, largest)
	}
}

// TestStreamFollowsItsReply has many short streams alongside one that keeps the
// writer busy.
func TestStreamFollowsItsReply(t *testing.T) {
	s := endless(t)
	c := newCaller(t, serveWebSocket(t, nil), "")
	c.http(s.url, stream("endless"))
	go func() {
		for {
			select {
			case <-c.stream("endless"):
			case <-c.Done():
				return
			}
		}
	}()
	answered := make(map[string]int) // how many notifications came before
	for round := range 8 {
		var answers []<-chan reply
		for i := range 10 {
			name := fmt.Sprintf("%d-%d", round, i)
			answers = append(answers, c.send("http/request", httpParams(s.url+"/10", stream(name))))
		}
		for i := range answers {
			name := fmt.Sprintf("%d-%d", round, i)
			answered[name] = await(t, "an answer", answers[i]).Notes
			if data, failure := c.body(name); len(data) != 10 || failure != "" {
				t.Fatalf("%d bytes, %s", len(data), failure)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, notes := range answered {
		if c.begun[name] <= notes {
			t.Errorf("the body of %s began with notification %d, before the reply, which followed %d", name, c.begun[name], notes)
		}
	}
}

// TestStreamsAndProcessesTakeTurns has both flood the connection.
func TestStreamsAndProcessesTakeTurns(t *testing.T) {
	s := endless(t)
	c := newCaller(t, serveWebSocket(t, nil), "")
	argv, env := testkit.Child("flood", "100000000")
	c.result("process/start", params{"processId": "p", "argv": argv, "cwd": "/", "env": env, "tty": false}, &struct{}{})
	c.http(s.url, stream("a"))
	c.http(s.url, stream("b"))
	for range 20 {
		c.delta("a")
		c.delta("b")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := c.outputs.Load(); n < 20 {
			return fmt.Errorf("%d pieces of output", n)
		}
		return nil
	})
	// Requests are answered all the same.
	c.result("environment/status", nil, &struct{}{})
	c.Drop()
}

// TestStreamTimeoutWhileNobodyReads ends a request whose client is slow.
func TestStreamTimeoutWhileNobodyReads(t *testing.T) {
	t.Parallel() // it mostly waits
	s := endless(t)
	over := make(chan struct{})
	url := far(t, func(w http.ResponseWriter, r *http.Request) {
		response, err := http.Get(s.url)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		_, _ = io.Copy(w, response.Body)
		close(over)
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := newCaller(t, serveWebSocket(t, nil), "")
	mute(c, true)
	p := stream("s")
	p["timeoutMs"] = 10_000 // enough to begin
	c.send("http/request", httpParams(url, p))
	await(t, "the end of the request", over)
	mute(c, false)
	if _, failure := c.body("s"); failure != "the body is incomplete: timeout after 10000 ms" {
		t.Errorf("failure %q", failure)
	}
}

// TestStreamsTogether bounds what many streams gather.
func TestStreamsTogether(t *testing.T) {
	s := endless(t)
	c := newCaller(t, serveWebSocket(t, nil), "")
	mute(c, true)
	before := heap()
	for i := range 150 {
		c.send("http/request", httpParams(s.url, stream(fmt.Sprint(i))))
	}
	sent := s.quiet(t)
	if grown := heap() - before; grown > 40<<20 {
		t.Errorf("%d bytes for %d sent", grown, sent)
	}
	c.Drop()
}
