// Package transporttest has the tests that every transport passes.
package transporttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/transport"
)

// Far is the peer of the Conn under test, made without package transport where that is
// possible.
type Far interface {
	Send(msg []byte) error
	Receive() ([]byte, error)
	Close()
}

// Kind is one of the transports.
type Kind struct {
	Name    string
	Connect func(t testing.TB, limit int64) (transport.Conn, Far)
	Blank   bool // carries empty messages
}

// Run tests a transport.
func Run(t *testing.T, k Kind) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Kind)
	}{
		{"MessagesBothWays", messagesBothWays},
		{"MessagesTogether", messagesTogether},
		{"BlankMessages", blankMessages},
		{"Limit", limit},
		{"Growth", growth},
		{"CloseUnblocksRead", closeUnblocksRead},
		{"CloseUnblocksWrite", closeUnblocksWrite},
		{"WriteAfterClose", writeAfterClose},
		{"ConcurrentClose", concurrentClose},
		{"PeerCloses", peerCloses},
		{"PeerSeesClose", peerSeesClose},
		{"Buffers", buffers},
		{"Backpressure", backpressure},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, k) })
	}
}

// Sizes of messages, around what the transports treat differently.
var Sizes = []int{1, 2, 125, 126, 4096, 16<<10 - 1, 16 << 10, 16<<10 + 1, 65535, 65536, 1, 5 << 20, 3}

func messagesBothWays(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
	var wg sync.WaitGroup
	run := func(f func(i, size int) error) {
		wg.Go(func() {
			for i, size := range Sizes {
				if err := f(i, size); err != nil {
					t.Errorf("message %d of %d bytes: %v", i, size, err)
					return
				}
			}
		})
	}
	equal := func(i, size int, got []byte, err error) error {
		if err == nil && !bytes.Equal(got, Message(i, size)) {
			return fmt.Errorf("came back different, %d bytes", len(got))
		}
		return err
	}
	var buf []byte
	run(func(i, size int) error { return end.Send(Message(i, size)) })
	run(func(i, size int) error { return near.Write(Message(i, size)) })
	run(func(i, size int) error {
		got, err := end.Receive()
		return equal(i, size, got, err)
	})
	run(func(i, size int) (err error) {
		buf, err = near.Read(buf)
		return equal(i, size, buf, err)
	})
	testkit.Within(t, "exchange", wg.Wait)
}

// messagesTogether writes messages of all Sizes at once.
func messagesTogether(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
	var messages [][]byte
	for i, size := range Sizes {
		messages = append(messages, Message(i, size), Message(i, 10))
	}
	wrote := make(chan error, 1)
	go func() { wrote <- near.Write(messages...) }()
	testkit.Within(t, "exchange", func() {
		for i, want := range messages {
			if got, err := end.Receive(); err != nil || !bytes.Equal(got, want) {
				t.Errorf("message %d: %v, %d bytes, want %d", i, err, len(got), len(want))
				return
			}
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	})
}

func blankMessages(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
	var want []string
	for _, msg := range []string{"", " ", "\t \r", "x", "", "y"} {
		if err := end.Send([]byte(msg)); err != nil {
			t.Fatal(err)
		}
		if k.Blank || len(bytes.TrimSpace([]byte(msg))) > 0 {
			want = append(want, msg)
		}
	}
	for i := range want {
		got, err := near.Read(nil)
		if err != nil || string(got) != want[i] {
			t.Fatalf("message %d: %q, %v, want %q", i, got, err, want[i])
		}
	}
}

func limit(t *testing.T, k Kind) {
	// Around the buffers of the transports, too.
	for _, limit := range []int{1, 10, 4096, 16<<10 - 2, 16<<10 - 1, 16 << 10, 16<<10 + 1, 100_000, 1 << 20} {
		near, end := k.Connect(t, int64(limit))
		var wg sync.WaitGroup
		over := []int{limit + 1, limit + 2, 2*limit + 1, limit + 100_000}
		wg.Go(func() {
			for _, size := range over {
				for _, size := range []int{limit, size} {
					if err := end.Send(Message(size, size)); err != nil {
						t.Error(err)
					}
				}
			}
			if err := end.Send([]byte("x")); err != nil {
				t.Error(err)
			}
		})
		for _, size := range over {
			got, err := near.Read(nil)
			if err != nil || !bytes.Equal(got, Message(limit, limit)) {
				t.Fatalf("limit %d: the limit itself: %d bytes, %v", limit, len(got), err)
			}
			got, err = near.Read(nil)
			e, ok := errors.AsType[*transport.TooLargeError](err)
			if !ok || got != nil || e.Limit != int64(limit) || e.Size != int64(size) {
				t.Fatalf("limit %d: %d bytes: %d bytes, %v", limit, size, len(got), err)
			}
			if whole := Message(size, size); len(e.Prefix) < min(size, 4<<10, limit) || len(e.Prefix) > 4<<10 || !bytes.HasPrefix(whole, e.Prefix) {
				t.Fatalf("limit %d: %d bytes: the prefix has %d bytes", limit, size, len(e.Prefix))
			}
		}
		if got, err := near.Read(nil); err != nil || string(got) != "x" {
			t.Fatalf("limit %d: afterwards: %q, %v", limit, got, err)
		}
		wg.Wait()
	}
}

// growth has a Conn ask for the memory of messages, and not get it in the end.
func growth(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
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
			if err := end.Send(Message(0, size)); err != nil {
				t.Error(err)
			}
		}
		_ = end.Send(Message(0, 4*size)) // the connection ends meanwhile
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
		_, err := end.Receive()
		if peer, ok := errors.AsType[*transport.PeerClosedError](err); ok && (peer.Reason.Code != transport.CodeTryAgainLater || peer.Reason.Text != "full") {
			t.Errorf("the peer learns %v", err)
		} else if err == nil {
			t.Error("the connection goes on")
		}
	})
}

func closeUnblocksRead(t *testing.T, k Kind) {
	near, _ := k.Connect(t, 0)
	result := make(chan error, 1)
	go func() {
		_, err := near.Read(nil)
		result <- err
	}()
	testkit.WaitFor(t, testkit.Patience, func() error { return Waits("closeUnblocksRead.") })
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
}

// Waits reports whether a goroutine that runs the named function waits itself.
func Waits(function string) error {
	stacks := testkit.Stacks()
	for _, stack := range strings.Split(stacks, "\n\n") {
		state, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(stack, function) && (strings.Contains(state, "[select") || strings.Contains(state, "[IO wait")) {
			return nil
		}
	}
	return fmt.Errorf("nothing in %s waits:\n%s", function, stacks)
}

// Flood writes until it fails, and counts the messages that it began.
func Flood(near transport.Conn, size int) (begun *atomic.Int64, end chan error) {
	begun, end = new(atomic.Int64), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			msg := Message(i, size)
			begun.Add(1)
			if err := near.Write(msg); err != nil {
				end <- err
				return
			}
		}
	}()
	return begun, end
}

// Stalled waits until the count of flood has not grown for a while, and not
// because the writer had no turn.
func Stalled(t *testing.T, count *atomic.Int64) int64 {
	t.Helper()
	last, since := count.Load(), time.Now()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := count.Load(); n != last || n == 0 {
			last, since = n, time.Now()
		}
		if time.Since(since) < 50*time.Millisecond {
			return fmt.Errorf("still growing: %d", last)
		}
		if err := Waits("transporttest.Flood"); err != nil {
			since = time.Now()
			return err
		}
		return nil
	})
	return last
}

func closeUnblocksWrite(t *testing.T, k Kind) {
	t.Parallel() // it mostly waits
	for _, size := range []int{100, 64 << 10, 5 << 20} {
		near, _ := k.Connect(t, 0)
		begun, end := Flood(near, size)
		Stalled(t, begun)
		testkit.Within(t, "Close", func() { _ = near.Close(transport.Reason{Code: transport.CodeGoingAway}) })
		testkit.Within(t, "Write", func() {
			if err := <-end; !errors.Is(err, transport.ErrClosed) {
				t.Errorf("a blocked Write after Close: %v", err)
			}
		})
	}
}

func writeAfterClose(t *testing.T, k Kind) {
	near, _ := k.Connect(t, 0)
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
}

func concurrentClose(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
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
			if _, err := end.Receive(); err != nil {
				return
			}
		}
	})
	testkit.Within(t, "closing", wg.Wait)
}

func peerCloses(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
	for i := range 3 {
		if err := end.Send(Message(i, 100)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(end.Close)
	for i := range 3 {
		if got, err := near.Read(nil); err != nil || !bytes.Equal(got, Message(i, 100)) {
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
}

func peerSeesClose(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
	if err := near.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = near.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "done"})
	}()
	if got, err := end.Receive(); err != nil || string(got) != "last words" {
		t.Fatalf("%q, %v", got, err)
	}
	if got, err := end.Receive(); err == nil {
		t.Fatalf("a message after the end: %q", got)
	}
	testkit.Within(t, "Close", func() { <-closed })
}

func buffers(t *testing.T, k Kind) {
	near, end := k.Connect(t, 0)
	const size = 1000
	// What was written may be changed afterwards.
	msg := make([]byte, size)
	for i := range 8 {
		copy(msg, Message(i, size))
		if err := near.Write(msg); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		if got, err := end.Receive(); err != nil || !bytes.Equal(got, Message(i, size)) {
			t.Fatalf("message %d was changed after it had been written: %v", i, err)
		}
	}
	// What was read stays, unless it is given back.
	var all [][]byte
	buf := make([]byte, 7, 2*size+2)
	for i := range 8 {
		if err := end.Send(Message(i, size)); err != nil {
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
		if !bytes.Equal(got, Message(i, size)) {
			t.Errorf("message %d changed after it had been read", i)
		}
	}
	// A message larger than the buffer.
	if err := end.Send(Message(1, 50_000)); err != nil {
		t.Fatal(err)
	}
	if got, err := near.Read(make([]byte, 10, 20)); err != nil || !bytes.Equal(got, Message(1, 50_000)) {
		t.Errorf("a buffer that is too small: %d bytes, %v", len(got), err)
	}
}

func backpressure(t *testing.T, k Kind) {
	const size, bound = 64 << 10, 64 << 20
	near, end := k.Connect(t, 0)
	begun, result := Flood(near, size)
	if n := Stalled(t, begun); n*size > bound {
		t.Errorf("%d messages of %d bytes were taken from a writer whose peer does not read", n, size)
	}
	testkit.Within(t, "reading", func() {
		for i := range 200 {
			if got, err := end.Receive(); err != nil || !bytes.Equal(got, Message(i, size)) {
				t.Errorf("message %d after the stall: %d bytes, %v", i, len(got), err)
				return
			}
		}
	})
	_ = near.Close(transport.Reason{Code: transport.CodeNormal})
	if err := <-result; !errors.Is(err, transport.ErrClosed) {
		t.Errorf("the writer: %v", err)
	}
}

// Ends sees to it that both ends of a connection are closed with the test.
func Ends(t testing.TB, near transport.Conn, end Far) (transport.Conn, Far) {
	t.Cleanup(func() {
		_ = near.Close(transport.Reason{Code: transport.CodeNormal})
		end.Close()
		for {
			if _, err := near.Read(nil); err != nil && !TooLarge(err) {
				return
			}
		}
	})
	return near, end
}

// TooLarge reports whether an error says that a message is too large.
func TooLarge(err error) bool {
	_, ok := errors.AsType[*transport.TooLargeError](err)
	return ok
}

// Message is a message of size bytes that no other index has; it is not blank
// and has no line ends.
func Message(index, size int) []byte {
	b := make([]byte, size)
	var word [8]byte
	for i := range b {
		if i%8 == 0 {
			binary.BigEndian.PutUint64(word[:], uint64(index)*0x9E3779B97F4A7C15+uint64(i))
		}
		b[i] = 'A' + word[i%8]%50
	}
	return b
}
