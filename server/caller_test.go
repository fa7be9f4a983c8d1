//go:build unix

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/server"
)

// params are those of a request.
type params map[string]any

// caller is a client that makes calls and sorts what comes.
type caller struct {
	t *testing.T
	*testclient.Conn
	outputs atomic.Int64 // notifications process/output

	mu     sync.Mutex
	deltas map[string]chan protocol.HTTPBodyDelta
	notes  int            // notifications that have come
	begun  map[string]int // how many when a body began
}

// reply is the answer to a request.
type reply = testclient.Answer

// newCaller connects to a server and shakes hands; resume is a session or "".
func newCaller(t *testing.T, srv transcript.Server, resume string) *caller {
	t.Helper()
	c := connect(t, srv)
	p := params{"clientName": "test"}
	if resume != "" {
		p["resumeSessionId"] = resume
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // the old connection may not have been noticed to be gone
		if err := c.initialize(p); err != nil {
			return err
		}
		return nil
	})
	return c
}

// connect connects to a server.
func connect(t *testing.T, srv transcript.Server) *caller {
	t.Helper()
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	c := &caller{t: t, deltas: make(map[string]chan protocol.HTTPBodyDelta), begun: make(map[string]int)}
	c.Conn = testclient.New(conn, c.notify)
	t.Cleanup(c.Drop)
	return c
}

// initialize shakes hands.
func (c *caller) initialize(p params) *protocol.Error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	err := c.Handshake(ctx, p)
	refused, ok := errors.AsType[*protocol.Error](err)
	if err != nil && !ok {
		c.t.Fatal(err)
	}
	return refused
}

// serveWebSocket starts a server and returns where it is. Without options it admits
// everybody.
func serveWebSocket(t *testing.T, o *server.Options) transcript.Server {
	t.Helper()
	if o == nil {
		o = &server.Options{Auth: server.Unauthenticated}
	}
	srv := server.New(o)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	return listenWebSocket(t, srv)
}

// notify sorts a notification.
func (c *caller) notify(method string, p json.RawMessage) {
	c.mu.Lock()
	c.notes++
	notes := c.notes
	c.mu.Unlock()
	switch method {
	case protocol.NotificationOutput:
		c.outputs.Add(1)
	case protocol.NotificationHTTPBodyDelta:
		d, err := protocol.DecodeParams[protocol.HTTPBodyDelta](p)
		if err != nil {
			c.t.Error(err)
		}
		c.mu.Lock()
		if c.begun[d.RequestID] == 0 {
			c.begun[d.RequestID] = notes
		}
		c.mu.Unlock()
		c.stream(d.RequestID) <- d
	}
}

// stream is where the pieces of a body arrive.
func (c *caller) stream(id string) chan protocol.HTTPBodyDelta {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deltas[id] == nil {
		c.deltas[id] = make(chan protocol.HTTPBodyDelta, 1<<16)
	}
	return c.deltas[id]
}

// send sends a request, whose answer comes through the channel.
func (c *caller) send(method string, p any) <-chan reply {
	c.t.Helper()
	answer, err := c.Begin(method, p)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer
}

func (c *caller) call(method string, p any) reply {
	c.t.Helper()
	r := await(c.t, "a reply to "+method, c.send(method, p))
	if r.Error == nil && r.Result == nil {
		c.t.Fatalf("%s is not answered: %v", method, c.Err())
	}
	return r
}

// result calls a method that must succeed.
func (c *caller) result(method string, p, result any) {
	c.t.Helper()
	r := c.call(method, p)
	if err := r.Decode(result); err != nil {
		c.t.Fatalf("%s: %s: %v", method, r.Result, err)
	}
}

// http has a request sent and answered.
func (c *caller) http(url string, more params) protocol.HTTPResponse {
	c.t.Helper()
	var response protocol.HTTPResponse
	c.result("http/request", httpParams(url, more), &response)
	return response
}

// httpError has a request sent that gets no answer.
func (c *caller) httpError(url string, more params) *protocol.Error {
	c.t.Helper()
	r := c.call("http/request", httpParams(url, more))
	if r.Error == nil {
		c.t.Fatalf("%s: %.500s", url, r.Result)
	}
	return r.Error
}

func httpParams(url string, more params) params {
	p := params{"method": "GET", "url": url, "requestId": "r"}
	for name, value := range more {
		p[name] = value
	}
	return p
}

// delta is the next piece of a body.
func (c *caller) delta(id string) protocol.HTTPBodyDelta {
	c.t.Helper()
	return await(c.t, "a piece of "+id, c.stream(id))
}

// body is all that comes of a body, and the error it ends with.
func (c *caller) body(id string) (data []byte, failure string) {
	c.t.Helper()
	for seq := uint64(1); ; seq++ {
		d := c.delta(id)
		if d.Seq != seq {
			c.t.Fatalf("%s: piece %d follows piece %d", id, d.Seq, seq-1)
		}
		data = append(data, d.Data...)
		if !d.Done {
			continue
		}
		if d.Error != nil {
			failure = *d.Error
		}
		return data, failure
	}
}

func await[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(testkit.Patience):
		panic("waited too long for " + what) // with the stacks of all goroutines
	}
	return v
}
