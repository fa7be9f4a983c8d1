//go:build unix

package server_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

// kind is a kind of things that a client can make the server remember.
type kind struct {
	name  string
	opts  server.Options
	limit int
	error string // of one too many, which names the limit

	// take takes thing i, and give ends one that was taken.
	take func(c *caller, i int) *protocol.Error
	give func(c *caller, i int)
}

// TestEverythingRememberedEnds fills every budget that a client can fill to its bound. It
// sees one more refused, ends one thing, and gets another. What is evicted instead of
// refused has its own rows in TestEverythingForgotten. docs/operations.md has the bounds.
func TestEverythingRememberedEnds(t *testing.T) {
	dir := realTempDir(t)
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	target := hold(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	port := listener.Addr().(*net.TCPAddr).Port
	call := func(method string, p func(id string) params) func(*caller, int) *protocol.Error {
		return func(c *caller, i int) *protocol.Error { return c.call(method, p(fmt.Sprint(i))).Error }
	}
	done := func(method string, p func(id string) params) func(*caller, int) {
		return func(c *caller, i int) { c.result(method, p(fmt.Sprint(i)), new(struct{})) }
	}
	notify := func(method string, p func(id string) params) func(*caller, int) {
		return func(c *caller, i int) {
			if err := c.Notify(method, p(fmt.Sprint(i))); err != nil {
				c.t.Error(err)
			}
		}
	}
	for _, k := range []kind{
		{
			name: "processes", opts: server.Options{Session: server.SessionOptions{MaxProcesses: 5}}, limit: 5, error: "the session has 5 live processes, the limit is 5",
			take: call("process/start", func(id string) params {
				return params{"processId": id, "argv": []string{"/bin/sleep", "1000"}, "cwd": "/", "env": params{}, "tty": false}
			}),
			give: done("process/terminate", func(id string) params { return params{"processId": id} }),
		},
		{
			name: "stdin", opts: server.Options{Session: server.SessionOptions{MaxQueuedInput: 5300 << 10}}, limit: 5, error: "bytes that processes have not read from their stdin, the limit is 5427200",
			take: func(c *caller, i int) *protocol.Error { // the pipe takes some of it
				_ = c.call("process/start", params{
					"processId": fmt.Sprint(i), "argv": []string{"/bin/sleep", "1000"}, "cwd": "/", "env": params{}, "tty": false, "pipeStdin": true,
				})
				return c.call("process/write", params{"processId": fmt.Sprint(i), "chunk": make([]byte, 1<<20)}).Error
			},
			give: done("process/terminate", func(id string) params { return params{"processId": id} }),
		},
		{
			name: "file handles", limit: 128, error: "128",
			take: call("fs/open", func(id string) params { return params{"handleId": id, "path": dir + "/file"} }),
			give: done("fs/close", func(id string) params { return params{"handleId": id} }),
		},
		{
			name: "watches", limit: 32, error: "32",
			take: call("fs/watch", func(id string) params { return params{"watchId": id, "path": dir} }),
			give: done("fs/unwatch", func(id string) params { return params{"watchId": id} }),
		},
		{
			name: "HTTP requests", limit: 256, error: "256 HTTP requests of this connection are active, the limit",
			take: call("http/request", func(id string) params {
				return httpParams(target.url+"/stream", params{"requestId": id, "streamResponse": true})
			}),
			give: notify("http/request/cancel", func(id string) params { return params{"requestId": id} }),
		},
		{
			name: "forwarded connections", limit: 128, error: "128",
			take: call("tcp/open", func(id string) params {
				return params{"streamId": id, "host": "127.0.0.1", "port": port, "credit": 0}
			}),
			give: notify("tcp/reset", func(id string) params { return params{"streamId": id, "message": "enough"} }),
		},
	} {
		t.Run(k.name, func(t *testing.T) {
			k.opts.Auth = server.Unauthenticated
			c := newCaller(t, serveWebSocket(t, &k.opts), "")
			for i := range k.limit {
				if err := k.take(c, i); err != nil {
					t.Fatalf("number %d: %s", i, err)
				}
			}
			for range 2 {
				if err := k.take(c, k.limit); err == nil || !strings.Contains(err.Message, k.error) {
					t.Fatalf("one more: %v, want %q", err, k.error)
				}
			}
			for i := range 3 {
				k.give(c, i)
				testkit.WaitFor(t, testkit.Patience, func() error { // what ends takes its time to be gone
					if err := k.take(c, k.limit+i); err != nil {
						return err
					}
					return nil
				})
				if err := k.take(c, k.limit+10); err == nil {
					t.Fatal("one that has ended makes room for two")
				}
			}
		})
	}
}

// TestEveryConnectionEnds is TestEverythingRememberedEnds for what takes a connection each.
func TestEveryConnectionEnds(t *testing.T) {
	for _, row := range []struct {
		name  string
		limit int
		error string
		take  func(c *caller, session string) *protocol.Error
	}{
		{"sessions", 3, "the server has 4 sessions, the limit is 4", func(c *caller, _ string) *protocol.Error { // besides the first
			return c.initialize(params{"clientName": "test"})
		}},
		{"observers", 2, "observers, the limit is 2", func(c *caller, session string) *protocol.Error {
			return c.initialize(params{"clientName": "test", "observeSessionId": session})
		}},
		{"leases", 2, "the limit is 2", func(c *caller, _ string) *protocol.Error {
			if err := c.initialize(params{"clientName": "test"}); err != nil {
				return err
			}
			return c.call("session/keep", params{"keepMs": 60_000}).Error
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			srv := serveWebSocket(t, &server.Options{
				Auth: server.Unauthenticated, Session: server.SessionOptions{MaxSessions: 4, MaxObservers: 2},
			})
			first := connect(t, srv)
			if err := first.initialize(params{"clientName": "test"}); err != nil {
				t.Fatal(err)
			}
			session := first.SessionID
			var taken []*caller
			more := func(srv transcript.Server) error {
				c := connect(t, srv)
				if err := row.take(c, session); err != nil {
					c.Close()
					return err
				}
				taken = append(taken, c)
				return nil
			}
			for i := range row.limit {
				if err := more(srv); err != nil {
					t.Fatalf("number %d: %v", i, err)
				}
			}
			if err := more(srv); err == nil || !strings.Contains(err.Error(), row.error) {
				t.Fatalf("one more: %v, want %q", err, row.error)
			}
			if row.name == "leases" {
				taken[0].result("session/keep", params{"keepMs": 0}, new(struct{}))
			}
			taken[0].Close()
			testkit.WaitFor(t, testkit.Patience, func() error { return more(srv) })
			if more(srv) == nil {
				t.Error("one that has ended makes room for two")
			}
		})
	}
}

// TestUnansweredRequestsEnd has a connection make more requests than may wait for their answers.
// The server reads no more until some are answered.
func TestUnansweredRequestsEnd(t *testing.T) {
	const (
		limit = 16_384 // as docs/operations.md says
		queue = 16     // messages that the transport holds
		more  = 1000
	)
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	ours, theirs := transport.Pipe(0)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.ServeConn(theirs)
	}()
	t.Cleanup(func() {
		_ = ours.Close(transport.Reason{})
		<-served
	})
	var sent atomic.Int64
	send := func(text string) bool { return ours.Write([]byte(text)) == nil }
	receive := func(what string) string {
		t.Helper()
		text, err := ours.Read(nil)
		if err != nil || !strings.Contains(string(text), what) {
			t.Fatalf("received %s, %v; want %s", text, err, what)
		}
		return string(text)
	}
	send(`{"id":0,"method":"initialize","params":{"clientName":"test"}}`)
	_, session, _ := strings.Cut(receive(`"sessionId":"`), `"sessionId":"`)
	session, _, _ = strings.Cut(session, `"`)
	send(`{"method":"initialized"}`)
	send(`{"id":0,"method":"process/start","params":{"processId":"p","argv":["/bin/cat"],"cwd":"/","env":{},"tty":false,"pipeStdin":true}}`)
	receive(`"id":0`)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for i := range limit + queue + more {
			if !send(fmt.Sprintf(`{"id":%d,"method":"process/wait","params":{"processId":"p"}}`, i)) {
				return
			}
			sent.Add(1)
		}
	}()
	const taken = limit + 1 + queue // the server has read one more, and holds it
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := sent.Load(); n < taken {
			return fmt.Errorf("%d requests were taken, want %d", n, taken)
		}
		return nil
	})
	other := newCaller(t, listenWebSocket(t, srv), "") // which is not concerned
	other.result("environment/status", params{}, new(struct{}))
	if n := sent.Load(); n != taken {
		t.Errorf("%d requests were taken, want %d", n, taken)
	}
	other.result("process/terminate", params{"processId": "p", "sessionId": session}, new(struct{}))
	for answered := 0; answered < limit+queue+more; {
		if strings.Contains(receive(`{`), `"id":`) {
			answered++
		}
	}
	<-sending
}

// TestEverythingForgotten fills what the server evicts instead of refusing, and sees that
// it keeps the latest alone.
func TestEverythingForgotten(t *testing.T) {
	srv := serveWebSocket(t, &server.Options{
		Auth:    server.Unauthenticated,
		Session: server.SessionOptions{MaxClosed: 3, RetainedBytes: 256 << 10, RetainedTotalBytes: 512 << 10},
	})
	c := newCaller(t, srv, "")
	run := func(id string, argv ...string) {
		c.result("process/start", params{"processId": id, "argv": argv, "cwd": "/", "env": params{}, "tty": false, "pipeStdin": true}, new(struct{}))
	}
	t.Run("closed processes", func(t *testing.T) {
		for i := range 10 {
			run(fmt.Sprint(i), "/bin/true")
			c.result("process/wait", params{"processId": fmt.Sprint(i)}, new(struct{}))
		}
		testkit.WaitFor(t, testkit.Patience, func() error { // the server forgets after it has answered
			known := 0
			for i := range 10 {
				if c.call("process/read", params{"processId": fmt.Sprint(i)}).Error == nil {
					known++
				}
			}
			if known != 3 {
				return fmt.Errorf("%d closed processes are remembered", known)
			}
			return nil
		})
	})
	t.Run("writeIds", func(t *testing.T) {
		run("cat", "/bin/cat")
		write := func(i int, text string) {
			p := params{"processId": "cat", "chunk": []byte(text), "writeId": fmt.Sprintf("%0250d", i)}
			var result struct{ Status protocol.WriteStatus }
			if c.result("process/write", p, &result); result.Status != protocol.WriteAccepted {
				t.Fatalf("write %d: %s", i, result.Status)
			}
		}
		const writes = 2000 // 256 KiB hold 834
		for i := range writes {
			write(i, "")
		}
		write(writes-1, "dropped")
		write(0, "again")
		c.result("process/closeStdin", params{"processId": "cat"}, new(struct{}))
		c.result("process/wait", params{"processId": "cat"}, new(struct{}))
		var read protocol.ReadResult
		c.result("process/read", params{"processId": "cat"}, &read)
		text := ""
		for _, chunk := range read.Chunks {
			text += string(chunk.Data)
		}
		if text != "again" {
			t.Errorf("the process has received %q", text)
		}
		for i, want := range map[int]protocol.WriteStatus{writes - 1: protocol.WriteAccepted, writes / 2: protocol.WriteStdinClosed} {
			p := params{"processId": "cat", "chunk": "", "writeId": fmt.Sprintf("%0250d", i)}
			var result struct{ Status protocol.WriteStatus }
			if c.result("process/write", p, &result); result.Status != want {
				t.Errorf("write %d again to a closed process: %s, want %s", i, result.Status, want)
			}
		}
	})
	t.Run("output", func(t *testing.T) {
		const written, each, all, more = 1 << 20, 256 << 10, 512 << 10, 128 << 10 // more: a chunk, and what the pipe holds
		for i := range 3 {
			id := fmt.Sprint("much", i)
			run(id, "/bin/sh", "-c", "head -c 1048576 /dev/zero")
			c.result("process/wait", params{"processId": id}, new(struct{}))
		}
		total := 0
		for i := range 3 {
			var read protocol.ReadResult
			c.result("process/read", params{"processId": fmt.Sprint("much", i)}, &read)
			kept := 0
			for _, chunk := range read.Chunks {
				kept += len(chunk.Data)
			}
			if kept > each+more || uint64(kept)+read.DroppedBytes != written {
				t.Errorf("of process %d, %d bytes are retained, and %d were dropped", i, kept, read.DroppedBytes)
			}
			total += kept
		}
		if total < each-more || total > all+more {
			t.Errorf("%d bytes are retained", total)
		}
	})
	if err := c.Err(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestHalfMessages has connections begin messages that they do not end. Their memory has one limit
// for all, and the connection that exceeds it is closed.
func TestHalfMessages(t *testing.T) {
	t.Parallel()
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	taken := server.LimitMessageMemory(srv, 8<<20)
	connect := func() net.Conn {
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = srv.ServeConn(transport.NewStream(theirs))
		}()
		t.Cleanup(func() { _ = ours.Close(); <-served })
		if _, err := io.WriteString(ours, `{"id":0,"method":"initialize","params":{"clientName":"test"}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(ours).ReadSlice('\n'); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(ours, `{"method":"initialized"}`+"\n")
		return ours
	}
	half := make([]byte, 5<<20)
	first := connect()
	if _, err := first.Write(half); err != nil {
		t.Fatal(err)
	}
	if _, err := connect().Write(half); err == nil {
		t.Error("two half messages have more memory than there is for all")
	}
	_ = first.Close()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := taken(); n > 0 {
			return fmt.Errorf("%d bytes are taken by nobody", n)
		}
		return nil
	})
	whole := connect()
	if _, err := io.WriteString(whole, `{"id":1,"method":"environment/status","params":{"padding":"`+strings.Repeat("x", 5<<20)+`"}}`+"\n"); err != nil {
		t.Error(err)
	}
	if answer, err := bufio.NewReader(whole).ReadString('\n'); err != nil || !strings.Contains(answer, `"id":1`) {
		t.Errorf("%s, %v", answer, err)
	}
}
