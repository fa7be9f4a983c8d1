//go:build unix

package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transporttest"
	"execserver/transport"
)

func TestViolations(t *testing.T) {
	long := strings.Repeat("x", 126)
	overflow := append(masked(text, 1<<62, nil)[:0:0], frame(text, "a")...)
	overflow = append(overflow, masked(continuation, 1<<63-1, nil)...)
	for _, test := range []struct {
		name   string
		input  []byte
		code   int
		reason string
	}{
		{"unmasked", []byte{fin | text, 1, 'x'}, 1002, "not masked"},
		{"first reserved bit", frame(fin|text|0x40, "x"), 1002, "reserved bits"},
		{"second reserved bit", frame(fin|text|0x20, "x"), 1002, "reserved bits"},
		{"third reserved bit", frame(fin|text|0x10, "x"), 1002, "reserved bits"},
		{"reserved bit in a ping", frame(fin|ping|0x40, "x"), 1002, "reserved bits"},
		{"opcode 3", frame(fin|3, "x"), 1002, "unknown opcode 0x3"},
		{"opcode 7", frame(fin|7, "x"), 1002, "unknown opcode 0x7"},
		{"opcode 11", frame(fin|11, "x"), 1002, "unknown opcode 0xb"},
		{"opcode 15", frame(fin|15, "x"), 1002, "unknown opcode 0xf"},
		{"continuation of nothing", frame(fin|continuation, "x"), 1002, "continuation frame without a message"},
		{"continuation after the end", append(frame(fin|text, "a"), frame(fin|continuation, "x")...), 1002, "continuation frame without a message"},
		{"message within a message", append(frame(text, "a"), frame(fin|text, "b")...), 1002, "before the end of the one before"},
		{"binary within a message", append(frame(text, "a"), frame(fin|binaryFrame, "b")...), 1002, "before the end of the one before"},
		{"fragmented ping", frame(ping, "x"), 1002, "control frame is fragmented"},
		{"fragmented close", frame(closeFrame, ""), 1002, "control frame is fragmented"},
		{"long ping", frame(fin|ping, long), 1002, "longer than 125 bytes"},
		{"long pong", frame(fin|pong, long), 1002, "longer than 125 bytes"},
		{"long close", frame(fin|closeFrame, long), 1002, "longer than 125 bytes"},
		{"highest bit of the length", masked(fin|text, 1<<63, nil), 1002, "highest bit"},
		{"all bits of the length", masked(fin|text, 1<<64-1, nil), 1002, "highest bit"},
		{"sum of the lengths", overflow, 1009, "overflows"},
		{"close of one byte", frame(fin|closeFrame, "x"), 1002, "one byte"},
		{"close with code 0", closing(0, ""), 1002, "invalid close frame"},
		{"close with code 999", closing(999, ""), 1002, "invalid close frame"},
		{"close with code 1004", closing(1004, ""), 1002, "invalid close frame"},
		{"close with code 1005", closing(1005, ""), 1002, "invalid close frame"},
		{"close with code 1006", closing(1006, ""), 1002, "invalid close frame"},
		{"close with code 1015", closing(1015, ""), 1002, "invalid close frame"},
		{"close with code 2999", closing(2999, ""), 1002, "invalid close frame"},
		{"close with code 5000", closing(5000, ""), 1002, "invalid close frame"},
		{"close with a reason not UTF-8", closing(1000, "\xff"), 1002, "invalid close frame"},
	} {
		t.Run(test.name, func(t *testing.T) {
			near, peer := dialRaw(t, 0)
			result := make(chan error, 1)
			go func() {
				_, err := readAll(near)
				result <- err
			}()
			// What follows a violation is not looked at, but must not keep the
			// peer from reading why.
			peer.send(append(test.input, make([]byte, 10_000_000)...))
			peer.expectClose(test.code, test.reason)
			_ = peer.conn.Close()
			testkit.Within(t, "Read", func() {
				err := <-result
				if err == nil || !strings.Contains(err.Error(), test.reason) || errors.Is(err, io.EOF) {
					t.Errorf("Read: %v", err)
				}
			})
		})
	}
}

func TestFragments(t *testing.T) {
	const msg = "0123456789 abcdefghi"
	var input []byte
	var want []string
	for first := 0; first <= len(msg); first++ {
		for second := first; second <= len(msg); second += 3 {
			input = append(input, frame(text, msg[:first])...)
			input = append(input, frame(fin|ping, fmt.Sprint(first))...)
			input = append(input, frame(continuation, msg[first:second])...)
			input = append(input, frame(fin|pong, "unasked")...)
			input = append(input, frame(fin|continuation, msg[second:])...)
			want = append(want, msg)
		}
	}
	input = append(input, frame(fin|binaryFrame, "binary \xff")...)
	input = append(input, frame(fin|text, "")...)
	input = append(input, frame(binaryFrame, "")...)
	input = append(input, frame(fin|continuation, "")...)
	want = append(want, "binary \xff", "", "")
	input = append(input, closing(4321, "that is all")...)
	for _, step := range []int{1, 7, len(input)} {
		t.Run(fmt.Sprint("in pieces of ", step), func(t *testing.T) {
			near, peer := dialRaw(t, 0, input[:step]...)
			go func() {
				for piece := range slices.Chunk(input[step:], step) {
					if _, err := peer.conn.Write(piece); err != nil {
						t.Errorf("send: %v", err)
						return
					}
				}
			}()
			got, err := readAll(near)
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if e, ok := errors.AsType[*transport.PeerClosedError](err); !ok || e.Reason.Code != 4321 || e.Reason.Text != "that is all" {
				t.Errorf("the end: %v", err)
			}
			// Pongs may be left out, but not invented; the close frame is last.
			for {
				f := peer.next()
				if f.first == fin|closeFrame {
					if code := binary.BigEndian.Uint16(f.payload); code != 4321 {
						t.Errorf("close frame with code %d", code)
					}
					return
				}
				if n, err := strconv.Atoi(string(f.payload)); f.first != fin|pong || err != nil || n < 0 || n > len(msg) {
					t.Errorf("got frame %v", f)
				}
			}
		})
	}
}

// TestLargeFragments has fragments whose sizes are no multiples of anything.
func TestLargeFragments(t *testing.T) {
	near, peer := dialRaw(t, 0)
	msg := string(transporttest.Message(1, 1<<20))
	go func() {
		peer.send(frame(text, msg[:70_001]))
		peer.send(frame(continuation, msg[70_001:370_004]))
		peer.send(frame(fin|continuation, msg[370_004:]))
	}()
	if got, err := near.Read(nil); err != nil || string(got) != msg {
		t.Errorf("%d bytes came different, %v", len(got), err)
	}
}

func TestOutgoingFrames(t *testing.T) {
	const most = 4 << 20
	for _, test := range []struct{ size, frames int }{
		{0, 1},
		{1, 1},
		{125, 1},
		{126, 1},
		{16 << 10, 1},
		{16<<10 + 1, 1},
		{65535, 1},
		{65536, 1},
		{most - 1, 1},
		{most, 1},
		{most + 1, 2},
		{2 * most, 2},
		{2*most + 1, 3},
	} {
		near, peer := dialRaw(t, 0)
		msg := transporttest.Message(1, test.size)
		result := make(chan error, 1)
		go func() { result <- near.Write(msg) }()
		var got []byte
		for i := range test.frames {
			want := byte(continuation)
			if i == 0 {
				want = text
			}
			if i == test.frames-1 {
				want |= fin
			}
			f := peer.next()
			if f.first != want || len(f.payload) > most {
				t.Fatalf("%d bytes, frame %d: %v, want %#x", test.size, i, f, want)
			}
			got = append(got, f.payload...)
		}
		if err := <-result; err != nil || !bytes.Equal(got, msg) {
			t.Errorf("%d bytes came as %d, %v", test.size, len(got), err)
		}
	}
}

// TestPingWhileWriterIsStuck has a peer that sends, and reads only later.
func TestPingWhileWriterIsStuck(t *testing.T) {
	near, peer := dialRaw(t, 0)
	begun, writer := transporttest.Flood(near, 1<<20)
	count := transporttest.Stalled(t, begun)
	messages := make(chan string)
	go func() {
		defer close(messages)
		for {
			msg, err := near.Read(nil)
			if err != nil {
				return
			}
			messages <- string(msg)
		}
	}()
	for i := range 5 {
		peer.send(frame(fin|ping, fmt.Sprint("ping ", i)))
		peer.send(frame(fin|text, fmt.Sprint("message ", i)))
		testkit.Within(t, "Read beside a stuck writer", func() {
			if got := <-messages; got != fmt.Sprint("message ", i) {
				t.Errorf("got %q", got)
			}
		})
	}
	if n := begun.Load(); n != count {
		t.Fatalf("the writer was not stuck: %d messages, then %d", count, n)
	}
	// Everything arrives in order, and so does the answer to the latest ping.
	next, answered := 0, false
	for next < int(count)+3 || !answered {
		f := peer.next()
		switch {
		case f.first == fin|pong && strings.HasPrefix(string(f.payload), "ping "):
			answered = answered || string(f.payload) == "ping 4"
		case f.first == fin|text && bytes.Equal(f.payload, transporttest.Message(next, 1<<20)):
			next++
		default:
			t.Fatalf("frame %v when message %d was due", f, next)
		}
	}
	_ = peer.conn.Close()
	<-writer
	for range messages {
	}
}

func TestPongs(t *testing.T) {
	near, peer := dialRaw(t, 0)
	pongs := make(chan uint64, 10)
	near.OnPong(func(n uint64) { pongs <- n })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = readAll(near)
	}()
	for _, n := range []uint64{0, 7, 1<<64 - 1} {
		if err := near.Ping(n); err != nil {
			t.Fatal(err)
		}
		payload := fmt.Sprint(n)
		peer.expect(fin|ping, payload)
		for _, not := range []string{"", "x", "-1", "1 ", "18446744073709551616", strings.Repeat("1", 125)} {
			peer.send(frame(fin|pong, not)) // not ours
		}
		peer.send(frame(fin|pong, payload))
		if got := <-pongs; got != n {
			t.Errorf("pong %d, want %d", got, n)
		}
	}
	for _, payload := range []string{"", "x", "\xff\x00", strings.Repeat("p", 125)} {
		peer.send(frame(fin|ping, payload))
		peer.expect(fin|pong, payload)
	}
	_ = peer.conn.Close()
	<-done
}

// TestLyingLengths sends headers that announce more than comes.
func TestLyingLengths(t *testing.T) {
	for _, length := range []uint64{1 << 16, 60 << 20, 64 << 20, 64<<20 + 1, 1 << 40, 1<<63 - 1} {
		near, peer := dialRaw(t, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		peer.send(masked(fin|text, length, []byte("just this")))
		_ = peer.conn.Close()
		msg, err := near.Read(nil)
		runtime.ReadMemStats(&after)
		if msg != nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes announced: %q, %v", length, msg, err)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 1<<20 {
			t.Errorf("%d bytes announced: %d bytes allocated", length, spent)
		}
	}
}

// TestReceived sees bytes of a message before its end.
func TestReceived(t *testing.T) {
	for _, limit := range []int64{0, 10} { // below and above the limit
		near, peer := dialRaw(t, limit)
		done := make(chan error, 1)
		go func() {
			_, err := near.Read(nil)
			done <- err
		}()
		if n := near.Received(); n != 0 {
			t.Errorf("%d bytes before the first", n)
		}
		const size = 100_000
		whole := masked(fin|text, size, transporttest.Message(1, size))
		half := len(whole) - size/2
		peer.send(whole[:half])
		testkit.Within(t, "Received", func() {
			for near.Received() != size/2 {
				runtime.Gosched()
			}
		})
		peer.send(whole[half:])
		if err := <-done; transporttest.TooLarge(err) != (limit > 0) || near.Received() != size {
			t.Errorf("%d bytes in the end, %v", near.Received(), err)
		}
	}
}

func TestEndWithin(t *testing.T) {
	for _, input := range [][]byte{{fin | text}, frame(fin|text, "abc")[:8], frame(text, "abc"), masked(fin|text, 1000, nil)[:3], frame(fin|ping, "abc")[:7]} {
		near, peer := dialRaw(t, 0)
		peer.send(input)
		_ = peer.conn.Close()
		if msg, err := near.Read(nil); msg != nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%x and the end: %q, %v", input, msg, err)
		}
	}
	near, peer := dialRaw(t, 0)
	_ = peer.conn.Close()
	if msg, err := near.Read(nil); msg != nil || err != io.EOF {
		t.Errorf("the end between messages: %q, %v", msg, err)
	}
}

func dialIndependent(url string, client *http.Client) (*websocket.Conn, error) {
	conn, _, err := websocket.Dial(context.Background(), url, &websocket.DialOptions{HTTPClient: client})
	return conn, err
}

func TestCloseHandshake(t *testing.T) {
	long := strings.Repeat("ü", 100)
	for _, test := range []struct {
		reason transport.Reason
		code   int
		text   string
	}{
		{transport.Reason{}, 1000, ""},
		{transport.Reason{Code: transport.CodeGoingAway, Text: "going away"}, 1001, "going away"},
		{transport.Reason{Code: transport.CodeTryAgainLater, Text: long}, 1013, long[:122]},
		{transport.Reason{Code: transport.CodePolicy, Text: "x" + long}, 1008, ("x" + long)[:123]},
	} {
		near, conn := acceptWebSocket(t, 0, false, dialIndependent)
		ended := make(chan error, 1)
		go func() {
			_, err := near.Read(nil)
			ended <- err
		}()
		go func() { _ = near.Close(test.reason) }()
		_, _, err := conn.Read(context.Background())
		e, ok := errors.AsType[websocket.CloseError](err)
		if !ok || int(e.Code) != test.code || e.Reason != test.text {
			t.Errorf("%+v came as %v", test.reason, err)
		}
		testkit.Within(t, "Read", func() { err = <-ended })
		if peer, ok := errors.AsType[*transport.PeerClosedError](err); !ok || peer.Reason.Code != test.code {
			t.Errorf("the peer's answer was not noticed: %v", err)
		}
		_ = conn.CloseNow()
	}
	for _, code := range []int{1000, 1001, 1003, 1007, 1014, 3000, 4999} {
		near, conn := acceptWebSocket(t, 0, false, dialIndependent)
		ended := make(chan error, 1)
		go func() {
			_, err := near.Read(nil)
			ended <- err
		}()
		// Its Close waits for the answer.
		if err := conn.Close(websocket.StatusCode(code), "that is it"); err != nil {
			t.Errorf("the peer's Close(%d): %v", code, err)
		}
		if e, ok := errors.AsType[*transport.PeerClosedError](<-ended); !ok || e.Reason.Code != code || e.Reason.Text != "that is it" {
			t.Errorf("the peer closed with %d, Read says %v", code, e)
		}
		if err := near.Write([]byte("x")); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Write after the peer's close: %v", err)
		}
	}
	// A close frame without code, and its answer.
	near, peer := dialRaw(t, 0, frame(fin|closeFrame, "")...)
	if _, err := near.Read(nil); err == nil || err.Error() != "peer closed the connection with code 1000: " {
		t.Errorf("a close frame without code: %v", err)
	}
	peer.expectClose(1000, "")
}

// TestCloseWithUnreadInput has a peer that sends much and then reads why it was
// turned away.
func TestCloseWithUnreadInput(t *testing.T) {
	near, peer := dialRaw(t, 0)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_, _ = readAll(near)
	}()
	// The peer waits with reading until all is sent.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = near.Close(transport.Reason{Code: transport.CodePolicy, Text: "not you"})
	}()
	for range 100 {
		if _, err := peer.conn.Write(frame(fin|text, strings.Repeat("x", 10_000))); err != nil {
			t.Fatalf("the peer could not send on: %v", err)
		}
	}
	<-closed
	peer.expectClose(1008, "not you")
	// Only our direction has ended.
	select {
	case <-reading:
		t.Error("the socket was closed before the peer had answered")
	default:
	}
	_ = peer.conn.Close()
	testkit.Within(t, "Read", func() { <-reading })
}
