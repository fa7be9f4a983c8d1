//go:build unix

package client_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// fake is a server that does what a test says: for servers that behave in ways
// that ours does not.
type fake struct {
	t   *testing.T
	url string
	l   net.Listener
	wg  sync.WaitGroup
}

// newFake starts one. Each connection is served by the next function; the last
// one serves all that follow.
func newFake(t *testing.T, serve ...func(*fakeConn)) *fake {
	path := filepath.Join(testkit.SocketDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, url: "unix://" + path, l: l}
	f.wg.Go(func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() {
				defer conn.Close()
				serve[min(i, len(serve)-1)](&fakeConn{t: t, conn: conn, r: bufio.NewReader(conn)})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.wg.Wait()
	})
	return f
}

// dial opens an Environment, which must succeed.
func (f *fake) dial(opts *client.Options) *client.Environment {
	f.t.Helper()
	env, err := client.Dial(background(f.t), f.url, opts)
	return opened(f.t, env, err)
}

// fakeConn is one connection. Its methods end the serving goroutine's test only
// by returning false or zero values: a client that is gone is no failure.
type fakeConn struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	mu   sync.Mutex // sending
}

type fakeMessage struct {
	ID     json.RawMessage
	Method string
	Params struct {
		ProcessID       string
		WriteID         string
		ResumeSessionID *string
		AfterSeq        uint64
		Offset          uint64
		Seq             uint64
		Chunk           []byte
		Signal          string
		StartID         *string
		HandleID        string
		Path            string
		Details         bool
		WatchID         string
		After           string
		CreateMode      int
		NoReplace       bool
		Capabilities    map[string]bool
	}
}

// next returns the client's next message.
func (c *fakeConn) next() (m fakeMessage, ok bool) {
	line, err := c.r.ReadBytes('\n')
	if err != nil {
		return m, false
	}
	if err := json.Unmarshal(line, &m); err != nil {
		c.t.Errorf("the client sent %s: %v", line, err)
	}
	return m, true
}

// expect returns the next message, which must be of the method.
func (c *fakeConn) expect(method string) (m fakeMessage, ok bool) {
	m, ok = c.next()
	if ok && m.Method != method {
		c.t.Errorf("the client sent %s, not %s", m.Method, method)
		return m, false
	}
	return m, ok
}

func (c *fakeConn) send(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		c.t.Error(err)
	}
	c.raw(string(text))
}

func (c *fakeConn) raw(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintln(c.conn, line)
}

type object = map[string]any

func (c *fakeConn) reply(m fakeMessage, result any) {
	c.send(object{"id": m.ID, "result": result})
}

func (c *fakeConn) refuse(m fakeMessage, code protocol.Code, text string) {
	c.send(object{"id": m.ID, "error": object{"code": code, "message": text}})
}

func (c *fakeConn) notify(method string, params object) {
	c.send(object{"method": method, "params": params})
}

func (c *fakeConn) output(id string, seq uint64, text string) {
	c.notify("process/output", object{"processId": id, "seq": seq, "stream": "stdout", "chunk": []byte(text)})
}

func (c *fakeConn) exited(id string, seq uint64, code int) {
	c.notify("process/exited", object{"processId": id, "seq": seq, "exitCode": code, "sandboxDenied": false})
}

func (c *fakeConn) closed(id string, seq uint64) {
	c.notify("process/closed", object{"processId": id, "seq": seq})
}

// shake shakes hands; the session is "s".
func (c *fakeConn) shake(capabilities ...string) bool {
	m, ok := c.expect("initialize")
	if !ok {
		return false
	}
	if !m.Params.Capabilities["processAck"] {
		c.t.Error("the client does not ask to acknowledge")
	}
	flags := object{}
	for _, name := range capabilities {
		flags[name] = true
	}
	c.reply(m, object{"sessionId": "s", "environmentInfo": object{
		"shell": object{"name": "sh", "path": "/bin/sh"}, "cwd": "file:///", "platformOs": "linux", "capabilities": flags,
	}})
	_, ok = c.expect("initialized")
	return ok
}

// start takes a process/start and answers it.
func (c *fakeConn) start() (id string, ok bool) {
	m, ok := c.expect("process/start")
	if ok {
		c.reply(m, object{"processId": m.Params.ProcessID})
	}
	return m.Params.ProcessID, ok
}

// startAndBreak shakes hands, answers a process/start, and breaks the connection.
func startAndBreak(c *fakeConn) {
	if c.shake() {
		c.start()
	}
}

// drain reads until the client is gone; it answers every terminate and every
// other request with an error.
func (c *fakeConn) drain() {
	for {
		m, ok := c.next()
		switch {
		case !ok:
			return
		case m.Method == "process/terminate":
			c.reply(m, object{"running": false})
		case m.ID != nil:
			c.refuse(m, protocol.CodeInternal, "the test does not expect this")
		}
	}
}
