//go:build unix

package server_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/transcript"
	"execserver/protocol"
	"execserver/server"
)

// patience is how long a test waits for what should happen soon.
const patience = 20 * time.Second

// params are those of a request.
type params map[string]any

// caller is a client that makes calls and sorts what comes.
type caller struct {
	t       *testing.T
	conn    transcript.Conn
	session string
	gone    chan struct{} // closed when nothing comes any more
	ending  error         // why; read it when gone is closed
	outputs atomic.Int64  // notifications process/output

	mu      sync.Mutex
	next    int
	replies map[int]chan reply
	deltas  map[string]chan protocol.HTTPBodyDelta
	order   []string // "reply N" and "delta ID SEQ", as they came
}

type reply struct {
	Result json.RawMessage
	Error  *protocol.Error
}

// newCaller connects to a server and shakes hands; resume is a session or "".
func newCaller(t *testing.T, srv transcript.Server, resume string) *caller {
	t.Helper()
	c := connect(t, srv)
	p := params{"clientName": "test"}
	if resume != "" {
		p["resumeSessionId"] = resume
	}
	testkit.WaitFor(t, patience, func() error { // the old connection may not have been noticed to be gone
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
	c := &caller{
		t: t, conn: conn, gone: make(chan struct{}),
		replies: make(map[int]chan reply), deltas: make(map[string]chan protocol.HTTPBodyDelta),
	}
	go c.receive()
	t.Cleanup(c.drop)
	return c
}

// initialize shakes hands.
func (c *caller) initialize(p params) *protocol.Error {
	c.t.Helper()
	r := c.call("initialize", p)
	if r.Error != nil {
		return r.Error
	}
	var info struct{ SessionID string }
	if err := json.Unmarshal(r.Result, &info); err != nil {
		c.t.Fatal(err)
	}
	c.session = info.SessionID
	c.write(params{"method": "initialized"})
	return nil
}

// serveWebSocket starts a server and returns where it is.
func serveWebSocket(t *testing.T, o *server.Options) transcript.Server {
	t.Helper()
	srv := server.New(o)
	t.Cleanup(func() { testkit.Shutdown(t, srv, shutdownTimeout) })
	return listenWebSocket(t, srv)
}

// drop ends the connection without a word, and waits until nothing comes.
func (c *caller) drop() {
	c.conn.Drop()
	<-c.gone
}

func (c *caller) receive() {
	defer close(c.gone)
	for {
		text, err := c.conn.Receive()
		if err != nil {
			c.ending = err
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			reply
		}
		if err := json.Unmarshal(text, &m); err != nil {
			c.t.Errorf("%.200s: %v", text, err)
			return
		}
		switch m.Method {
		case "":
			c.mu.Lock()
			c.order = append(c.order, fmt.Sprintf("reply %d", m.ID))
			answer := c.replies[m.ID]
			c.mu.Unlock()
			answer <- m.reply
		case protocol.NotificationOutput:
			c.outputs.Add(1)
		case protocol.NotificationHTTPBodyDelta:
			d, err := protocol.DecodeHTTPBodyDelta(m.Params)
			if err != nil {
				c.t.Error(err)
			}
			c.mu.Lock()
			c.order = append(c.order, fmt.Sprintf("delta %s %d", d.RequestID, d.Seq))
			c.mu.Unlock()
			c.stream(d.RequestID) <- d
		}
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

func (c *caller) write(message any) {
	c.t.Helper()
	text, err := json.Marshal(message)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.conn.Send(transcript.Whole, text); err != nil {
		c.t.Error(err)
	}
}

// send sends a request, whose reply comes through the channel.
func (c *caller) send(method string, p any) (answer chan reply, id int) {
	c.t.Helper()
	c.mu.Lock()
	c.next++
	id, answer = c.next, make(chan reply, 1)
	c.replies[id] = answer
	c.mu.Unlock()
	c.write(params{"id": id, "method": method, "params": p})
	return answer, id
}

func (c *caller) call(method string, p any) reply {
	c.t.Helper()
	answer, _ := c.send(method, p)
	return await(c.t, "a reply to "+method, answer)
}

// result calls a method that must succeed.
func (c *caller) result(method string, p, result any) {
	c.t.Helper()
	r := c.call(method, p)
	if r.Error != nil {
		c.t.Fatalf("%s: %v", method, r.Error)
	}
	if err := json.Unmarshal(r.Result, result); err != nil {
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
	case <-time.After(patience):
		panic("waited too long for " + what) // with the stacks of all goroutines
	}
	return v
}
