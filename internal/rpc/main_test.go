package rpc_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"execserver/internal/rpc"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/transport"
)

func TestMain(m *testing.M) { testkit.VerifyMain(testkit.Ledger(m)) }

// handler serves requests by a function for each method.
type handler map[string]func(*rpc.Request)

func (h handler) Request(r *rpc.Request) {
	if f := h[r.Method]; f != nil {
		f(r)
		return
	}
	r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "no %s", r.Method))
}

func (h handler) Notification(method string, params json.RawMessage, _ []byte) error {
	switch method {
	case "fine":
		return nil
	case "panic":
		panic("a notification")
	}
	return fmt.Errorf("no notification %s, params %s", method, params)
}

// echo answers with the params.
func echo(r *rpc.Request) { r.Reply(append(json.RawMessage(nil), r.Params...)) }

// logs collects what is logged.
type logs struct{ testkit.Buffer }

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// client is the far end of a connection, which says what the test wants.
type client struct {
	t    testing.TB
	conn transport.Conn
}

// tapped is a transport that calls before for every write.
type tapped struct {
	transport.Conn
	before func(messages [][]byte)
}

func (w *tapped) Write(messages ...[]byte) error {
	w.before(messages)
	return w.Conn.Write(messages...)
}

// running is a connection that is being served.
type running struct {
	*rpc.Conn
	ended chan struct{} // Run and Wait have returned
	err   error         // what Run returned
}

// serve serves one connection in memory until the test ends.
func serve(t testing.TB, h rpc.Handler, opts *rpc.Options) (*running, *client) {
	far, near := transport.Pipe(0)
	return serveOn(t, near, h, opts), &client{t, far}
}

func serveOn(t testing.TB, near transport.Conn, h rpc.Handler, opts *rpc.Options) *running {
	c := &running{Conn: rpc.New(near, h, opts), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		c.err = c.Run()
		c.Wait()
	}()
	t.Cleanup(func() {
		_ = near.Close(transport.Reason{})
		c.wait(t)
	})
	return c
}

// wait waits until the connection has ended, and returns why.
func (c *running) wait(t testing.TB) error {
	t.Helper()
	await(t, "the end of the connection", c.ended)
	return c.err
}

// await receives from a channel, which must not take longer than the tests'
// patience.
func await[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	timeout := time.NewTimer(testkit.Patience)
	defer timeout.Stop()
	select {
	case v = <-ch:
	case <-timeout.C:
		panic("waited too long for " + what) // with the stacks of all goroutines
	}
	return v
}

func (c *client) send(format string, args ...any) {
	c.t.Helper()
	if err := c.conn.Write(fmt.Appendf(nil, format, args...)); err != nil {
		c.t.Errorf("send: %v", err)
	}
}

// next returns the next message of the server.
func (c *client) next() string {
	c.t.Helper()
	got := make(chan string, 1)
	go func() {
		msg, err := c.conn.Read(nil)
		if err != nil {
			msg = []byte("error: " + err.Error())
		}
		got <- string(msg)
	}()
	return await(c.t, "a message", got)
}

// expect reads a message and compares it; an asterisk at the end stands for
// anything.
func (c *client) expect(want string) {
	c.t.Helper()
	got := c.next()
	if start, open := strings.CutSuffix(want, "*"); got != want && (!open || !strings.HasPrefix(got, start)) {
		c.t.Errorf("got  %s\nwant %s", got, want)
	}
}

// response is an answer to a request of the test.
type response struct {
	ID     int
	Result json.RawMessage
	Error  *protocol.Error
}

func (c *client) response() (r response) {
	c.t.Helper()
	msg := c.next()
	if err := json.Unmarshal([]byte(msg), &r); err != nil {
		c.t.Fatalf("%s: %v", msg, err)
	}
	return r
}
