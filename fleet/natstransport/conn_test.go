//go:build unix

package natstransport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/natstest"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/transport"
)

// read reads on a goroutine until the end, and returns the error.
func read(c *natstransport.Conn) <-chan error {
	end := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Read(nil); err != nil {
				end <- err
				return
			}
		}
	}()
	return end
}

// await returns what comes from a channel.
func await[T any](t *testing.T, what string, from <-chan T) (got T) {
	t.Helper()
	testkit.Within(t, what, func() { got = <-from })
	return got
}

func TestHelloAndRemote(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, nil)
	_, near := p.connect(t, []byte(`{"name":"ann"}`))
	if string(near.Hello()) != `{"name":"ann"}` || near.Remote() != "a test" {
		t.Errorf("%s, %s", near.Hello(), near.Remote())
	}
}

func TestNobodyListens(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, nil)
	for _, name := range []string{"other", "", "*", ">", "box.x", "box *"} {
		if _, err := p.dialer.Dial(context.Background(), name, natstransport.Call{}); !errors.Is(err, natstransport.ErrNoMachine) {
			t.Errorf("%q: %v", name, err)
		}
	}
	p.listener.Close()
	if _, err := p.dialer.Dial(context.Background(), "box", natstransport.Call{}); !errors.Is(err, natstransport.ErrNoMachine) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := p.listener.Accept(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

// TestInstances has two machines claim a name, one of which is meant.
func TestInstances(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, &natstransport.Options{Instance: "old"})
	second, err := natstransport.Listen(natstest.Connect(t, url), "box", &natstransport.Options{Instance: "new"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	for range 20 {
		for instance, listener := range map[string]*natstransport.Listener{"old": p.listener, "new": second} {
			far, err := p.dialer.Dial(t.Context(), "box", natstransport.Call{Instance: instance})
			if err != nil {
				t.Fatal(err)
			}
			near, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if err := far.Write([]byte(instance)); err != nil {
				t.Fatal(err)
			}
			if got, err := near.Read(nil); err != nil || string(got) != instance {
				t.Errorf("%q, %v", got, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.dialer.Dial(ctx, "box", natstransport.Call{Instance: "another"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an instance that is not there: %v", err)
	}
}

// TestGap removes one frame on the way. The reader gets everything before it, and then the
// end; so does the writer.
func TestGap(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	// The machine and the dialer have different prefixes. What is between them drops a frame.
	const lost = 5
	wire := natstest.Connect(t, url)
	frames := 0
	relay := func(from, to string) {
		_, err := wire.Subscribe(from+".>", func(m *nats.Msg) {
			subject := to + strings.TrimPrefix(m.Subject, from)
			if strings.HasPrefix(m.Subject, "near.out.") && len(m.Data) > 9 && m.Data[0] == 'd' {
				if frames++; frames == lost {
					return
				}
			}
			_ = wire.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Data: m.Data})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	relay("near.out", "far.out")
	relay("far.in", "near.in")
	relay("far.open", "near.open")
	if err := wire.Flush(); err != nil {
		t.Fatal(err)
	}
	near := newPair(t, url, url, &natstransport.Options{Prefix: "near"})
	far := newPair(t, url, url, &natstransport.Options{Prefix: "far"})
	far.listener.Close() // the relay is the machine there
	p := pair{listener: near.listener, dialer: far.dialer}
	a, b := p.connect(t, nil)
	for i := range 2 * lost {
		if err := b.Write(fmt.Append(nil, i)); err != nil && i < lost {
			t.Fatal(err)
		}
	}
	for i := 1; i < lost; i++ {
		if got, err := a.Read(nil); err != nil || string(got) != fmt.Sprint(i-1) {
			t.Fatalf("message %d: %q, %v", i, got, err)
		}
	}
	if got, err := a.Read(nil); !errors.Is(err, natstransport.ErrGap) {
		t.Errorf("at the gap: %q, %v", got, err)
	}
	err := await(t, "the other end", read(b))
	_, closed := errors.AsType[*transport.PeerClosedError](err)
	if (!closed || !strings.Contains(err.Error(), "missing")) && !errors.Is(err, natstransport.ErrLost) {
		t.Errorf("the writer's end: %v", err)
	}
}

// TestPeerVanishes cuts one side off without a word.
func TestPeerVanishes(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, &natstransport.Options{Interval: 20 * time.Millisecond})
	far, near := p.connect(t, nil)
	ended := read(near)
	p.ofDialer.Close()
	if err := await(t, "the end", ended); !errors.Is(err, natstransport.ErrLost) || !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("the machine's end: %v", err)
	}
	if err := await(t, "the own end", read(far)); !errors.Is(err, natstransport.ErrLost) {
		t.Errorf("the dialer's end: %v", err)
	}
	if err := far.Write([]byte("x")); !errors.Is(err, natstransport.ErrLost) {
		t.Errorf("Write afterwards: %v", err)
	}
}

// TestIdle keeps an idle connection for many times the time after which a silent one ends.
func TestIdle(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, &natstransport.Options{Interval: 50 * time.Millisecond})
	far, near := p.connect(t, nil)
	ended := read(near)
	select {
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(time.Second):
	}
	_ = far.Close(transport.Reason{})
	await(t, "the end", ended)
}

// TestServerRestarts loses the NATS server. The connection ends, and the next one works.
func TestServerRestarts(t *testing.T) {
	address := natstest.At(t, testkit.FreeAddress(t))
	first := natstest.Serve(t, address)
	url := first.ClientURL()
	var ended atomic.Int64
	p := newPair(t, url, url, &natstransport.Options{Lost: func(n int) { ended.Add(int64(n)) }})
	far, near := p.connect(t, nil)
	atFar, atNear := read(far), read(near)
	first.Shutdown()
	first.WaitForShutdown()
	for _, end := range []<-chan error{atFar, atNear} {
		if err := await(t, "the end", end); !errors.Is(err, natstransport.ErrLost) {
			t.Errorf("the end: %v", err)
		}
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // they are counted once both have ended
		if n := ended.Load(); n != 2 {
			return fmt.Errorf("%d connections were counted as lost", n)
		}
		return nil
	})
	natstest.Serve(t, address)
	testkit.WaitFor(t, testkit.Patience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c, err := p.dialer.Dial(ctx, "box", natstransport.Call{})
		if err == nil {
			_ = c.Close(transport.Reason{})
		}
		return err
	})
}

// TestUnknownConnection sends a frame to a connection that the machine does not know, as
// after it has been started again, and ends a connection that the dialer does not know.
func TestUnknownConnection(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, nil)
	nc := natstest.Connect(t, url)
	answers, err := nc.SubscribeSync("exec.out.box.d.9")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ frame, want string }{{"a\x00\x00\x00\x00\x00\x00\x00\x05", "r"}, {"r", ""}, {"x\x00\x00\x00\x00\x00\x00\x00\x06\x03\xe8", ""}} {
		if err := nc.Publish("exec.in.box.first.d.9", []byte(row.frame)); err != nil {
			t.Fatal(err)
		}
		if row.want == "" {
			continue // the next answer would come for it
		}
		if m, err := answers.NextMsg(testkit.Patience); err != nil || string(m.Data) != row.want {
			t.Fatalf("%q: %v, %v", row.frame, m, err)
		}
	}
	if err := nc.Flush(); err != nil { // all have gone to the machine before it answers others
		t.Fatal(err)
	}
	far, _ := p.connect(t, nil)
	ended := read(far)
	// The machine answers this frame, which is not its own, with a reset of the connection.
	_, err = p.ofBox.Subscribe("exec.in.box.>", func(m *nats.Msg) {
		_ = p.ofBox.Publish("exec.out.box"+strings.TrimPrefix(m.Subject, "exec.in.box.first"), []byte("r"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := await(t, "the end", ended); !errors.Is(err, natstransport.ErrLost) {
		t.Errorf("the end: %v", err)
	}
	if n, _, err := answers.Pending(); n != 0 || err != nil {
		t.Errorf("%d answers to frames that need none, %v", n, err)
	}
}

// TestStalledReader writes 1 GiB to each of many connections whose readers do not read,
// while one is read. Neither this program, which has both ends and the NATS server, nor a
// queue grows, and the neighbour is served.
func TestStalledReader(t *testing.T) {
	const connections, window = 32, 256 << 10
	server := natstest.Serve(t, nil)
	p := newPair(t, server.ClientURL(), server.ClientURL(), &natstransport.Options{Window: window})
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wrote atomic.Int64
	var writers []<-chan error
	for range connections {
		far, near := p.connect(t, nil)
		t.Cleanup(func() { _ = far.Close(transport.Reason{}) })
		end := make(chan error, 1)
		go func() {
			msg := make([]byte, 64<<10)
			for {
				if err := near.Write(msg); err != nil {
					end <- err
					return
				}
				wrote.Add(int64(len(msg)))
			}
		}()
		writers = append(writers, end)
	}
	last, since := wrote.Load(), time.Now()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := wrote.Load(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 300*time.Millisecond {
			return fmt.Errorf("the writers have written %d bytes and continue", last)
		}
		return nil
	})
	if last > connections*window {
		t.Errorf("%d bytes were taken from writers of %d connections with a window of %d", last, connections, window)
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 3*connections*window {
		t.Errorf("the memory grew by %d bytes", grown)
	} else {
		t.Logf("%d stalled connections: %d bytes written, %d bytes of memory", connections, last, grown)
	}
	// A neighbour.
	far, near := p.connect(t, nil)
	var worst time.Duration
	for i := range 200 {
		start := time.Now()
		if err := far.Write(fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		if got, err := near.Read(nil); err != nil || string(got) != fmt.Sprint(i) {
			t.Fatalf("%q, %v", got, err)
		}
		worst = max(worst, time.Since(start))
	}
	t.Logf("the slowest of 200 messages of a neighbour took %v", worst)
	p.listener.Close()
	for _, end := range writers {
		if err := await(t, "a writer", end); err == nil {
			t.Error("a writer did not fail")
		}
	}
}

// TestPings asks for signs of life in both directions, directly and through a relay.
func TestPings(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, nil)
	far, near := p.connect(t, nil)
	pongs := make(chan uint64, 2)
	near.OnPong(func(n uint64) { pongs <- n })
	far.OnPing(func(n uint64) { _ = far.Pong(n + 1000) }) // as a relay does, when its client answers
	atFar, atNear := read(far), read(near)
	if err := near.Ping(7); err != nil {
		t.Fatal(err)
	}
	if n := await(t, "the pong", pongs); n != 1007 {
		t.Errorf("the pong has %d", n)
	}
	_ = far.Close(transport.Reason{Code: transport.CodePolicy, Text: "enough"})
	await(t, "the own end", atFar)
	err := await(t, "the end", atNear)
	if peer, ok := errors.AsType[*transport.PeerClosedError](err); !ok || peer.Reason != (transport.Reason{Code: transport.CodePolicy, Text: "enough"}) {
		t.Errorf("the end: %v", err)
	}
}

// TestBadPeers speaks the protocol wrongly.
func TestBadPeers(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	number := func(kind byte, n uint64, body ...byte) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{kind}, n), body...)
	}
	eight := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	for _, row := range []struct {
		name   string
		frames func(yield func([]byte) bool)
		want   string
	}{
		{"nothing", each(nil), "invalid"},
		{"unknown kind", each(number('?', 1)), "invalid"},
		{"short", each([]byte("d123")), "invalid"},
		{"number 0", each(number('a', 0)), "missing"},
		{"number twice", each(number('a', 1), number('a', 1)), "missing"},
		{"credit for what was not sent", each(number('c', 1, eight(1<<30)...)), "invalid"},
		{"negative credit", each(number('c', 1, eight(1<<63)...)), "invalid"},
		{"more than the window", func(yield func([]byte) bool) {
			for i := range 5 {
				yield(number('d', uint64(i+1), make([]byte, 256<<10)...))
			}
		}, "more than its credit"},
		{"pings", func(yield func([]byte) bool) {
			for i := range 1000 {
				yield(number('p', uint64(i+1), eight(0)...))
			}
		}, "pings wait"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newPair(t, url, url, nil)
			nc := natstest.Connect(t, url)
			reply, err := nc.Request("exec.open.box", []byte(`{"version":1,"key":"d.1","window":1048576}`), testkit.Patience)
			if err != nil || strings.Contains(string(reply.Data), "refusal") {
				t.Fatalf("%v %s", err, reply.Data)
			}
			c, err := p.listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			for frame := range row.frames {
				_ = nc.Publish("exec.in.box.first.d.1", frame)
			}
			testkit.WaitFor(t, testkit.Patience, func() error {
				err := c.Write([]byte("x"))
				if err == nil {
					return errors.New("the connection continues")
				}
				if !strings.Contains(err.Error(), row.want) {
					t.Errorf("the end: %v", err)
				}
				return nil
			})
		})
	}
}

func each(frames ...[]byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, frame := range frames {
			yield(frame)
		}
	}
}

// TestRequests sends requests that are not understood.
func TestRequests(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	newPair(t, url, url, nil)
	nc := natstest.Connect(t, url)
	for text, want := range map[string]string{
		``: "not understood", `[]`: "not understood",
		`{"version":2,"key":"a.b","window":1048576}`:                         "version",
		`{"version":1,"key":"a","window":1048576}`:                           "invalid",
		`{"version":1,"key":"a.>","window":1048576}`:                         "invalid",
		`{"version":1,"key":"a.b.c","window":1048576}`:                       "invalid",
		`{"version":1,"key":"a.b","window":1}`:                               "invalid",
		`{"version":1,"key":"a.b","window":1048576,"of":"the next release"}`: `"window":1048576}`,
	} {
		reply, err := nc.Request("exec.open.box", []byte(text), testkit.Patience)
		if err != nil || !bytes.Contains(reply.Data, []byte(want)) {
			t.Errorf("%s: %v, %s", text, err, reply.Data)
		}
	}
}
