//go:build unix

package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/transport"
)

// sizes of messages, around what the transports treat differently.
var sizes = []int{1, 2, 125, 126, 4096, 16<<10 - 1, 16 << 10, 16<<10 + 1, 65535, 65536, 1, 5 << 20, 3}

func TestMessagesBothWays(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		var wg sync.WaitGroup
		run := func(f func(i, size int) error) {
			wg.Go(func() {
				for i, size := range sizes {
					if err := f(i, size); err != nil {
						t.Errorf("message %d of %d bytes: %v", i, size, err)
						return
					}
				}
			})
		}
		equal := func(i, size int, got []byte, err error) error {
			if err == nil && !bytes.Equal(got, message(i, size)) {
				return fmt.Errorf("came back different, %d bytes", len(got))
			}
			return err
		}
		var buf []byte
		run(func(i, size int) error { return end.send(message(i, size)) })
		run(func(i, size int) error { return near.Write(message(i, size)) })
		run(func(i, size int) error {
			got, err := end.receive()
			return equal(i, size, got, err)
		})
		run(func(i, size int) (err error) {
			buf, err = near.Read(buf)
			return equal(i, size, buf, err)
		})
		testkit.Within(t, "exchange", wg.Wait)
	})
}

// TestMessagesTogether writes messages of all sizes at once.
func TestMessagesTogether(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		var messages [][]byte
		for i, size := range sizes {
			messages = append(messages, message(i, size), message(i, 10))
		}
		wrote := make(chan error, 1)
		go func() { wrote <- near.Write(messages...) }()
		testkit.Within(t, "exchange", func() {
			for i, want := range messages {
				if got, err := end.receive(); err != nil || !bytes.Equal(got, want) {
					t.Errorf("message %d: %v, %d bytes, want %d", i, err, len(got), len(want))
					return
				}
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		})
	})
}

func TestBlankMessages(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		var want []string
		for _, msg := range []string{"", " ", "\t \r", "x", "", "y"} {
			if err := end.send([]byte(msg)); err != nil {
				t.Fatal(err)
			}
			if k.blank || len(bytes.TrimSpace([]byte(msg))) > 0 {
				want = append(want, msg)
			}
		}
		for i := range want {
			got, err := near.Read(nil)
			if err != nil || string(got) != want[i] {
				t.Fatalf("message %d: %q, %v, want %q", i, got, err, want[i])
			}
		}
	})
}

func TestLimit(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		// Around the buffers of the transports, too.
		for _, limit := range []int{1, 10, 4096, 16<<10 - 2, 16<<10 - 1, 16 << 10, 16<<10 + 1, 100_000, 1 << 20} {
			near, end := k.connect(t, int64(limit))
			var wg sync.WaitGroup
			over := []int{limit + 1, limit + 2, 2*limit + 1, limit + 100_000}
			wg.Go(func() {
				for _, size := range over {
					for _, size := range []int{limit, size} {
						if err := end.send(message(size, size)); err != nil {
							t.Error(err)
						}
					}
				}
				if err := end.send([]byte("x")); err != nil {
					t.Error(err)
				}
			})
			for _, size := range over {
				got, err := near.Read(nil)
				if err != nil || !bytes.Equal(got, message(limit, limit)) {
					t.Fatalf("limit %d: the limit itself: %d bytes, %v", limit, len(got), err)
				}
				got, err = near.Read(nil)
				e, ok := errors.AsType[*transport.TooLargeError](err)
				if !ok || got != nil || e.Limit != int64(limit) || e.Size != int64(size) {
					t.Fatalf("limit %d: %d bytes: %d bytes, %v", limit, size, len(got), err)
				}
				if whole := message(size, size); len(e.Prefix) < min(size, 4<<10, limit) || len(e.Prefix) > 4<<10 || !bytes.HasPrefix(whole, e.Prefix) {
					t.Fatalf("limit %d: %d bytes: the prefix has %d bytes", limit, size, len(e.Prefix))
				}
			}
			if got, err := near.Read(nil); err != nil || string(got) != "x" {
				t.Fatalf("limit %d: afterwards: %q, %v", limit, got, err)
			}
			wg.Wait()
		}
	})
}

// TestGrowth has a Conn ask for the memory of messages, and not get it in the end.
func TestGrowth(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		growing, ok := near.(transport.Growing)
		if !ok {
			t.Skip("it does not ask for memory")
		}
		const size, enough = 3 << 20, 6 << 20
		full := errors.New("full")
		var taken int64
		growing.OnGrow(func(n int64) error {
			if taken += n; taken > enough {
				return full
			}
			return nil
		})
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 2 {
				if err := end.send(message(0, size)); err != nil {
					t.Error(err)
				}
			}
			_ = end.send(message(0, 4*size)) // the connection ends meanwhile
		}()
		var buf []byte
		for range 2 {
			var err error
			if buf, err = near.Read(buf); err != nil || len(buf) != size {
				t.Fatalf("%d bytes, %v", len(buf), err)
			}
			// The second one has the memory of the first. The allocator gives a little more.
			if taken < size-16<<10 || taken > int64(cap(buf)) {
				t.Errorf("it asked for %d bytes, and has %d", taken, cap(buf))
			}
		}
		if buf, err := near.Read(buf); !errors.Is(err, full) {
			t.Errorf("%d bytes, %v", len(buf), err)
		}
		testkit.Within(t, "the peer", func() { <-sent })
		testkit.Within(t, "the end", func() {
			_, err := end.receive()
			if peer, ok := errors.AsType[*transport.PeerClosedError](err); ok && (peer.Reason.Code != transport.CodeTryAgainLater || peer.Reason.Text != "full") {
				t.Errorf("the peer learns %v", err)
			} else if err == nil {
				t.Error("the connection goes on")
			}
		})
	})
}

func TestCloseUnblocksRead(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, _ := k.connect(t, 0)
		result := make(chan error, 1)
		go func() {
			_, err := near.Read(nil)
			result <- err
		}()
		testkit.WaitFor(t, testkit.Patience, func() error { return waits("TestCloseUnblocksRead.") })
		testkit.Within(t, "Close", func() { _ = near.Close(transport.Reason{Code: transport.CodeGoingAway}) })
		testkit.Within(t, "Read", func() {
			if err := <-result; !errors.Is(err, transport.ErrClosed) {
				t.Errorf("Read after Close: %v", err)
			}
		})
		testkit.Within(t, "Read again", func() {
			if _, err := near.Read(nil); err == nil {
				t.Error("a second Read after Close succeeded")
			}
		})
	})
}

// waits reports whether a goroutine that runs the named function waits itself.
func waits(function string) error {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		state, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(stack, function) && (strings.Contains(state, "[select") || strings.Contains(state, "[IO wait")) {
			return nil
		}
	}
	return fmt.Errorf("nothing in %s waits:\n%s", function, stacks)
}

// flood writes until it fails, and counts the messages that it began.
func flood(near transport.Conn, size int) (begun *atomic.Int64, end chan error) {
	begun, end = new(atomic.Int64), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			msg := message(i, size)
			begun.Add(1)
			if err := near.Write(msg); err != nil {
				end <- err
				return
			}
		}
	}()
	return begun, end
}

// stalled waits until the count of flood has not grown for a while, and not
// because the writer had no turn.
func stalled(t *testing.T, count *atomic.Int64) int64 {
	t.Helper()
	last, since := count.Load(), time.Now()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := count.Load(); n != last || n == 0 {
			last, since = n, time.Now()
		}
		if time.Since(since) < 50*time.Millisecond {
			return fmt.Errorf("still growing: %d", last)
		}
		if err := waits("transport_test.flood"); err != nil {
			since = time.Now()
			return err
		}
		return nil
	})
	return last
}

func TestCloseUnblocksWrite(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		t.Parallel() // it mostly waits
		for _, size := range []int{100, 64 << 10, 5 << 20} {
			near, _ := k.connect(t, 0)
			begun, end := flood(near, size)
			stalled(t, begun)
			testkit.Within(t, "Close", func() { _ = near.Close(transport.Reason{Code: transport.CodeGoingAway}) })
			testkit.Within(t, "Write", func() {
				if err := <-end; !errors.Is(err, transport.ErrClosed) {
					t.Errorf("a blocked Write after Close: %v", err)
				}
			})
		}
	})
}

func TestWriteAfterClose(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, _ := k.connect(t, 0)
		if err := near.Close(transport.Reason{Code: transport.CodeNormal}); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := near.Close(transport.Reason{Code: transport.CodeNormal}); err != nil {
			t.Errorf("Close again: %v", err)
		}
		for range 2 {
			if err := near.Write([]byte("x")); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("Write after Close: %v", err)
			}
		}
	})
}

func TestConcurrentClose(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			for near.Write([]byte("x")) == nil {
			}
		})
		wg.Go(func() {
			for {
				if _, err := near.Read(nil); err != nil {
					return
				}
			}
		})
		for range 8 {
			wg.Go(func() { _ = near.Close(transport.Reason{Code: transport.CodeNormal, Text: "done"}) })
		}
		wg.Go(func() {
			for {
				if _, err := end.receive(); err != nil {
					return
				}
			}
		})
		testkit.Within(t, "closing", wg.Wait)
	})
}

func TestPeerCloses(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		for i := range 3 {
			if err := end.send(message(i, 100)); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(end.close)
		for i := range 3 {
			if got, err := near.Read(nil); err != nil || !bytes.Equal(got, message(i, 100)) {
				t.Errorf("message %d before the end: %q, %v", i, got, err)
			}
		}
		testkit.Within(t, "Read", func() {
			_, err := near.Read(nil)
			peer, ok := errors.AsType[*transport.PeerClosedError](err)
			if !errors.Is(err, io.EOF) && (!ok || peer.Reason.Code != 1000 || peer.Reason.Text != "bye") {
				t.Errorf("the end: %v", err)
			}
		})
		testkit.Within(t, "the peer's close", wg.Wait)
		testkit.Within(t, "Write", func() {
			for near.Write([]byte("x")) == nil {
			}
		})
	})
}

func TestPeerSeesClose(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		if err := near.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = near.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "done"})
		}()
		if got, err := end.receive(); err != nil || string(got) != "last words" {
			t.Fatalf("%q, %v", got, err)
		}
		if got, err := end.receive(); err == nil {
			t.Fatalf("a message after the end: %q", got)
		}
		testkit.Within(t, "Close", func() { <-closed })
	})
}

func TestBuffers(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		near, end := k.connect(t, 0)
		const size = 1000
		// What was written may be changed afterwards.
		msg := make([]byte, size)
		for i := range 8 {
			copy(msg, message(i, size))
			if err := near.Write(msg); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 8 {
			if got, err := end.receive(); err != nil || !bytes.Equal(got, message(i, size)) {
				t.Fatalf("message %d was changed after it had been written: %v", i, err)
			}
		}
		// What was read stays, unless it is given back.
		var all [][]byte
		buf := make([]byte, 7, 2*size+2)
		for i := range 8 {
			if err := end.send(message(i, size)); err != nil {
				t.Fatal(err)
			}
			got, err := near.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 && &got[0] != &buf[0] {
				t.Error("Read did not use the buffer")
			}
			all, buf = append(all, got), nil
		}
		for i, got := range all {
			if !bytes.Equal(got, message(i, size)) {
				t.Errorf("message %d changed after it had been read", i)
			}
		}
		// A message larger than the buffer.
		if err := end.send(message(1, 50_000)); err != nil {
			t.Fatal(err)
		}
		if got, err := near.Read(make([]byte, 10, 20)); err != nil || !bytes.Equal(got, message(1, 50_000)) {
			t.Errorf("a buffer that is too small: %d bytes, %v", len(got), err)
		}
	})
}

func TestBackpressure(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		const size, bound = 64 << 10, 64 << 20
		near, end := k.connect(t, 0)
		begun, result := flood(near, size)
		if n := stalled(t, begun); n*size > bound {
			t.Errorf("%d messages of %d bytes were taken from a writer whose peer does not read", n, size)
		}
		testkit.Within(t, "reading", func() {
			for i := range 200 {
				if got, err := end.receive(); err != nil || !bytes.Equal(got, message(i, size)) {
					t.Errorf("message %d after the stall: %d bytes, %v", i, len(got), err)
					return
				}
			}
		})
		_ = near.Close(transport.Reason{Code: transport.CodeNormal})
		if err := <-result; !errors.Is(err, transport.ErrClosed) {
			t.Errorf("the writer: %v", err)
		}
	})
}

func TestNames(t *testing.T) {
	want := []string{
		"JSON-RPC message from exec-server stdio",
		"JSON-RPC message from exec-server unix socket",
		"websocket JSON-RPC message from exec-server websocket 127.0.0.1:",
		"websocket JSON-RPC message from exec-server websocket 127.0.0.1:",
		"JSON-RPC message from exec-server in-process connection",
		"JSON-RPC message from exec-server unix socket",
		"websocket JSON-RPC message from exec-server websocket 127.0.0.1:",
		"websocket JSON-RPC message from exec-server websocket 127.0.0.1:",
		"JSON-RPC message from exec-server NATS",
	}
	for i, k := range kinds {
		near, _ := k.connect(t, 0)
		if name := near.Name(); len(name) < len(want[i]) || name[:len(want[i])] != want[i] {
			t.Errorf("%s: %q", k.name, name)
		}
	}
}

// TestDescriptors counts what connections leave behind, however they end.
func TestDescriptors(t *testing.T) {
	round := func(t *testing.T) {
		for _, k := range slices.Repeat(kinds, 3) {
			for _, first := range []string{"near", "far"} {
				t.Run(k.name+" "+first, func(t *testing.T) {
					near, end := k.connect(t, 0)
					if err := end.send([]byte("x")); err != nil {
						t.Fatal(err)
					}
					if _, err := near.Read(nil); err != nil {
						t.Fatal(err)
					}
					if first == "near" {
						_ = near.Close(transport.Reason{Code: transport.CodeNormal})
					}
				})
			}
		}
	}
	t.Run("warm up", round)
	before := testkit.Descriptors(t)
	t.Run("measured", round)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := testkit.Descriptors(t); now > before {
			return fmt.Errorf("%d descriptors open, %d before", now, before)
		}
		return nil
	})
}
