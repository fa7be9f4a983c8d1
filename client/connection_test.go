//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// link opens an Environment through a proxy.
func link(t *testing.T, opts *client.Options) (*client.Environment, *proxy) {
	t.Helper()
	p := newProxy(t, serveWebSocket(t, nil))
	env, err := client.Dial(background(t), p.url, opts)
	return opened(t, env, err), p
}

// Calls that are made while there is no connection wait for one.
func TestCallsWait(t *testing.T) {
	t.Parallel()
	env, p := link(t, nil)
	c := child(env, "cat")
	var out strings.Builder
	c.Stdout = &out
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p.setRefuse(true)
	p.cut()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Write(background(t), []byte("written")); err != nil {
			t.Errorf("Write: %v", err)
		}
	})
	wg.Go(func() {
		if out, err := child(env, "echo", "hi").Output(); err != nil || string(out) != "hi\n" {
			t.Errorf("Output: %q, %v", out, err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Read(ctx, 0, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Read without a connection: %v", err)
	}
	p.setRefuse(false)
	wg.Wait()
	if err := c.CloseStdin(background(t)); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil || out.String() != "written" {
		t.Errorf("%q, %v", &out, err)
	}
}

// breakLink ends the connection, and lets no other one begin until setRefuse(false). It returns when
// calls of an Environment with FailFast fail.
func breakLink(t *testing.T, env *client.Environment, p *proxy) {
	t.Helper()
	p.setRefuse(true)
	p.cut()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if err := child(env, "exit", "0").Run(); !errors.Is(err, client.ErrRecovering) {
			return fmt.Errorf("not recovering: %v", err)
		}
		return nil
	})
}

func TestFailFast(t *testing.T) {
	t.Parallel()
	env, p := link(t, &client.Options{FailFast: true})
	c := child(env, "cat")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	breakLink(t, env, p)
	if err := env.Err(); err != nil {
		t.Errorf("Err: %v", err)
	}
	p.setRefuse(false)
	testkit.WaitFor(t, testkit.Patience, func() error { return child(env, "exit", "0").Run() })
	_ = c.Terminate(background(t), 0)
	_ = c.Wait()
}

// What the client does by itself waits for a connection, also with FailFast: it kills the process
// of a command whose context has ended, and copies all of Stdin.
func TestFailFastOwnRequests(t *testing.T) {
	t.Parallel()
	env, p := link(t, &client.Options{FailFast: true})
	ctx, cancel := context.WithCancel(background(t))
	defer cancel()
	idle := childContext(ctx, env, "idle")
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	input, typed := io.Pipe()
	cat := child(env, "cat")
	var out strings.Builder
	cat.Stdin, cat.Stdout = input, &out
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	breakLink(t, env, p)
	cancel()
	if _, err := io.WriteString(typed, "typed"); err != nil {
		t.Fatal(err)
	}
	_ = typed.Close()
	refused := p.refusedCount()
	testkit.WaitFor(t, testkit.Patience, func() error { // the requests have found no connection by now
		if p.refusedCount() < refused+2 {
			return errors.New("the client does not try to connect")
		}
		return nil
	})
	p.setRefuse(false)
	testkit.Within(t, "the kill", func() {
		if err := idle.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait: %v", err)
		}
	})
	testkit.Within(t, "the copy of Stdin", func() {
		if err := cat.Wait(); err != nil || out.String() != "typed" {
			t.Errorf("%q, %v", &out, err)
		}
	})
}

// What a reader of a closed process has not consumed is not acknowledged after a resume, so that
// the server keeps it.
func TestClosedProcessIsKept(t *testing.T) {
	t.Parallel()
	const size, total = 1 << 20, 2 << 20
	p := newProxy(t, serveWebSocket(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 3 << 19, RetainedTotalBytes: total}}))
	env := dialed(t, p.url, &client.Options{ReplayBytes: 1})
	c := child(env, "pattern", strconv.Itoa(size))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var check patternChecker
	cut := false
	for e, err := range c.EventsAfter(background(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := check.Write(e.Data); err != nil {
			t.Fatal(err)
		}
		if cut {
			continue
		}
		cut = true
		for range c.Events(background(t)) { // until it has closed
		}
		p.cut()
		for range 2 { // the second has a connection on which the events came again before
			if err := child(env, "flood", strconv.Itoa(2*total)).Run(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if check.n != size {
		t.Errorf("%d bytes of %d", check.n, size)
	}
	_ = c.Wait()
}

// When the connection is given up, everything fails, each process once.
func TestGivingUp(t *testing.T) {
	t.Parallel()
	env, p := link(t, &client.Options{RecoveryTimeout: 300 * time.Millisecond})
	var running []*client.Cmd
	for range 3 {
		c := child(env, "idle")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, c)
	}
	done := child(env, "exit", "0")
	if err := done.Run(); err != nil {
		t.Fatal(err)
	}
	for range done.Events(background(t)) {
	}
	p.setRefuse(true)
	p.cut()
	testkit.Within(t, "giving up", func() { <-env.Done() })
	for _, c := range running {
		var failures []error
		for _, err := range c.Events(background(t)) {
			if err != nil {
				failures = append(failures, err)
			}
		}
		if len(failures) != 1 {
			t.Errorf("failures %v", failures)
		}
		if n, err := c.Changed(background(t), 0); n != 1 || err != nil {
			t.Errorf("Changed: %d, %v", n, err)
		}
		err := c.Wait()
		process, ok := errors.AsType[*client.LostError](err)
		lost, ok2 := errors.AsType[*client.DisconnectedError](err)
		if !ok || !ok2 || process.ProcessID != c.ID || lost.Err == nil || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "recovery timed out after 300ms") {
			t.Errorf("Wait: %v", err)
		}
		if err := c.Write(background(t), []byte("x")); !errors.As(err, &lost) {
			t.Errorf("Write: %v", err)
		}
	}
	for _, err := range done.Events(background(t)) {
		if err != nil {
			t.Errorf("a process that had closed fails: %v", err)
		}
	}
	if err := child(env, "exit", "0").Run(); !errors.As(err, new(*client.DisconnectedError)) {
		t.Errorf("Run afterwards: %v", err)
	}
	if err := env.Err(); !errors.As(err, new(*client.DisconnectedError)) {
		t.Errorf("Err: %v", err)
	}
}

func TestNoRecovery(t *testing.T) {
	t.Parallel()
	env, p := link(t, &client.Options{RecoveryTimeout: -1})
	p.cut()
	testkit.Within(t, "the end", func() { <-env.Done() })
	if lost, ok := errors.AsType[*client.DisconnectedError](env.Err()); !ok || lost.Err != nil {
		t.Errorf("Err: %v", env.Err())
	}
}

// A server that has forgotten the session is asked once.
func TestServerForgets(t *testing.T) {
	t.Parallel()
	f := newFake(t,
		startAndBreak,
		func(c *fakeConn) {
			if m, ok := c.expect("initialize"); ok {
				if m.Params.ResumeSessionID == nil || *m.Params.ResumeSessionID != "s" {
					t.Errorf("resumeSessionId %v", m.Params.ResumeSessionID)
				}
				c.refuse(m, protocol.CodeInvalidRequest, "unknown session id s")
			}
		})
	env := f.dial(nil)
	err := child(env, "x").Run()
	if !errors.As(err, new(*client.LostError)) || !strings.Contains(err.Error(), "unknown session id s") {
		t.Errorf("Run: %v", err)
	}
}

func TestAnotherSession(t *testing.T) {
	t.Parallel()
	f := newFake(t,
		startAndBreak,
		func(c *fakeConn) {
			if m, ok := c.expect("initialize"); ok {
				c.reply(m, object{"sessionId": "other"})
			}
		})
	env := f.dial(nil)
	if err := child(env, "x").Run(); err == nil || !strings.Contains(err.Error(), "unexpected session other") {
		t.Errorf("Run: %v", err)
	}
}

// A server that has not noticed yet that the old connection is gone is asked
// again.
func TestStillAttached(t *testing.T) {
	t.Parallel()
	busy := func(c *fakeConn) {
		if m, ok := c.expect("initialize"); ok {
			c.refuse(m, protocol.CodeSessionAttached, "session s is already attached to another connection")
		}
	}
	f := newFake(t,
		startAndBreak,
		busy, busy,
		func(c *fakeConn) {
			if c.shake() {
				c.exited("1", 1, 0)
				c.closed("1", 2)
				c.drain()
			}
		})
	if err := child(f.dial(nil), "x").Run(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// What a server sends that cannot be understood is asked for again over another
// connection.
func TestNotificationThatMakesNoSense(t *testing.T) {
	t.Parallel()
	f := newFake(t,
		func(c *fakeConn) {
			if c.shake() {
				c.start()
				c.notify("something/new", object{"x": 1}) // no harm
				c.notify("process/output", object{"processId": "1", "seq": 1, "stream": "stdout", "chunk": "!"})
				c.drain()
			}
		},
		func(c *fakeConn) {
			if !c.shake() {
				return
			}
			m, ok := c.expect("process/read")
			if !ok {
				return
			}
			c.reply(m, object{"chunks": []object{{"seq": 1, "stream": "stdout", "chunk": []byte("ok")}}, "nextSeq": 2, "exited": true, "exitCode": 0, "closed": true, "failure": nil})
			if m, ok = c.expect("process/read"); ok {
				c.reply(m, object{"chunks": []object{}, "nextSeq": 4, "exited": true, "exitCode": 0, "closed": true, "failure": nil})
			}
			c.drain()
		})
	env := f.dial(nil)
	testkit.Within(t, "Output", func() {
		if out, err := child(env, "x").Output(); err != nil || string(out) != "ok" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// Output is acknowledged when somebody is done with it, and again over a new
// connection.
func TestAcknowledging(t *testing.T) {
	t.Parallel()
	acks := make(chan uint64, 100)
	next := make(chan func(*fakeConn))
	serve := func(c *fakeConn) {
		if !c.shake("processAck") {
			return
		}
		go func() {
			for f := range next {
				if f == nil {
					_ = c.conn.Close()
					return
				}
				f(c)
			}
		}()
		for {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == "process/start":
				c.reply(m, object{"processId": m.Params.ProcessID})
			case m.Method == "process/ack":
				acks <- m.Params.Seq
			case m.Method == "process/read":
				c.reply(m, object{"chunks": []object{}, "nextSeq": 3, "exited": false, "closed": false, "failure": nil})
			case m.ID != nil:
				c.reply(m, object{"running": false})
			}
		}
	}
	env := newFake(t, serve).dial(nil)
	c := child(env, "x")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	next <- func(c *fakeConn) { c.output("1", 1, "ab"); c.output("1", 2, "cd") }
	read := func(want string) {
		t.Helper()
		buf := make([]byte, len(want))
		if n, err := stdout.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("read %q, %v", buf[:n], err)
		}
	}
	expect := func(want uint64) {
		t.Helper()
		select {
		case got := <-acks:
			if got != want {
				t.Errorf("acknowledged %d, want %d", got, want)
			}
		case <-time.After(testkit.Patience):
			t.Fatal("no acknowledgement")
		}
	}
	read("a")
	select {
	case seq := <-acks:
		t.Errorf("acknowledged %d before it was read", seq)
	case <-time.After(100 * time.Millisecond):
	}
	read("b")
	expect(1)
	read("c")
	read("d")
	expect(2)
	next <- nil
	expect(2) // over the next connection
	next <- func(c *fakeConn) { c.exited("1", 3, 0); c.closed("1", 4) }
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	close(next)
}

// What was taken is acknowledged before the server can send it again, and so is
// what nobody knows any more: connections that break at once must not all bring
// the same.
func TestAcknowledgingAtOnce(t *testing.T) {
	t.Parallel()
	acked, finished := make(chan struct{}), make(chan struct{})
	f := newFake(t,
		func(c *fakeConn) {
			if !c.shake("processAck") {
				return
			}
			id, _ := c.start()
			c.exited(id, 1, 0)
			c.closed(id, 2)
			if m, ok := c.expect("process/ack"); ok && m.Params.Seq != 2 { // of a process without output, too
				t.Errorf("acknowledged %+v", m.Params)
			}
			close(acked)
			id, _ = c.start()
			c.output(id, 1, "a")
			c.output(id, 2, "b")
			<-finished // the second output has come
		},
		func(c *fakeConn) {
			m, ok := c.expect("initialize")
			if !ok {
				return
			}
			if _, ok := c.expect("initialized"); !ok {
				return
			}
			if m, ok := c.expect("process/ack"); ok && (m.Params.ProcessID != "2" || m.Params.Seq != 2) {
				t.Errorf("acknowledged %+v", m.Params)
			}
			c.reply(m, object{"sessionId": "s"})
			c.output("gone", 7, "x")
			for {
				m, ok := c.next()
				switch {
				case !ok:
					return
				case m.Method == "process/ack" && m.Params.ProcessID == "gone" && m.Params.Seq == 7:
					c.exited("2", 3, 0)
					c.closed("2", 4)
				case m.Method == "process/read":
					c.reply(m, object{"chunks": []object{}, "nextSeq": 3, "exited": false, "closed": false, "failure": nil})
				case m.ID != nil:
					c.reply(m, object{"running": false})
				}
			}
		})
	env := f.dial(nil)
	if err := child(env, "x").Run(); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "the acknowledgement", func() { <-acked })
	c := child(env, "x")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for seen := uint64(0); seen < 2; {
		var err error
		if seen, err = c.Changed(background(t), seen); err != nil {
			t.Fatal(err)
		}
	}
	close(finished)
	testkit.Within(t, "Wait", func() {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// What is acknowledged while the handshake of a new connection is under way goes
// to the old one, and is said again: the process may wait for it, and nothing
// else would come that could be acknowledged.
func TestAcknowledgingDuringHandshake(t *testing.T) {
	t.Parallel()
	const size = 256 << 10 // so much is acknowledged at once
	taken, acked := make(chan struct{}), make(chan uint64, 10)
	came, resuming := make(chan struct{}), make(chan struct{})
	f := newFake(t,
		func(c *fakeConn) {
			if c.shake("processAck") {
				id, _ := c.start()
				c.output(id, 1, strings.Repeat("x", size))
				<-came
			}
		},
		func(c *fakeConn) {
			m, ok := c.expect("initialize")
			if !ok {
				return
			}
			c.expect("initialized")
			close(resuming)
			<-taken
			c.reply(m, object{"sessionId": "s"})
			for {
				m, ok := c.next()
				switch {
				case !ok:
					return
				case m.Method == "process/ack":
					acked <- m.Params.Seq
				case m.Method == "process/read":
					c.reply(m, object{"chunks": []object{}, "nextSeq": 2, "exited": false, "closed": false, "failure": nil})
				case m.Method == "process/terminate":
					c.reply(m, object{"running": true})
					c.exited("1", 2, 137)
					c.closed("1", 3)
				}
			}
		})
	c := child(f.dial(nil), "x")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Changed(background(t), 0); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	close(came)
	testkit.Within(t, "the handshake", func() { <-resuming })
	if _, err := io.ReadFull(stdout, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	close(taken)
	testkit.Within(t, "the acknowledgement", func() {
		if seq := <-acked; seq != 1 {
			t.Errorf("acknowledged %d", seq)
		}
	})
	if err := c.Terminate(background(t), 0); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); !errors.As(err, new(*client.ExitError)) {
		t.Errorf("Wait: %v", err)
	}
}

// Starts that are under way when the connection is given up fail once, although
// both their callers and the end of everything find it out.
func TestStartsWhileGivingUp(t *testing.T) {
	t.Parallel()
	const starts = 50
	f := newFake(t,
		func(c *fakeConn) {
			if !c.shake() {
				return
			}
			for range starts {
				c.expect("process/start")
			}
		},
		func(c *fakeConn) {
			if m, ok := c.expect("initialize"); ok {
				c.refuse(m, protocol.CodeInvalidRequest, "unknown session id s")
			}
		})
	env := f.dial(nil)
	var wg sync.WaitGroup
	for range starts {
		wg.Go(func() {
			var out strings.Builder
			c := child(env, "x")
			c.Stdout = &out
			if err := c.Start(); !errors.As(err, new(*client.DisconnectedError)) || errors.As(err, new(*client.LostError)) {
				t.Errorf("Start: %v", err)
			}
		})
	}
	testkit.Within(t, "the starts", wg.Wait)
}
