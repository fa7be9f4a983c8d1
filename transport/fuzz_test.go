//go:build unix

package transport_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"execserver/transport"
)

// scriptConn is a connection whose peer has said everything already.
type scriptConn struct {
	net.Conn // nil: what is not overridden is not used
	r        io.Reader

	mu     sync.Mutex
	wrote  bytes.Buffer
	closed bool
}

func (c *scriptConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *scriptConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	return c.wrote.Write(b)
}

func (c *scriptConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

func (c *scriptConn) SetDeadline(time.Time) error { return nil }

// hijacker hands out a connection as net/http does.
type hijacker struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// frameModel is what a server makes of the bytes of a client.
type frameModel struct {
	messages []string
	pings    []string
	end      string // "EOF", "cut off", "peer 1000 text" or "violation 1002"
}

// modelFrames reads frames as RFC 6455 sections 5.2 to 5.5 tell.
func modelFrames(b []byte, limit int) (m frameModel) {
	var parts []byte // of the message that is being received
	within, size := false, uint64(0)
	take := func(n uint64) (p []byte, ok bool) {
		if uint64(len(b)) < n {
			return nil, false
		}
		p, b = b[:n], b[n:]
		return p, true
	}
	for {
		if len(b) == 0 && !within {
			m.end = "EOF"
			return m
		}
		m.end = "cut off"
		head, ok := take(2)
		if !ok {
			return m
		}
		opcode, final := head[0]&0x0F, head[0]&0x80 != 0
		if head[0]&0x70 != 0 || head[1]&0x80 == 0 {
			m.end = "violation 1002"
			return m
		}
		length := uint64(head[1] & 0x7F)
		if length >= 126 {
			long, ok := take(map[uint64]uint64{126: 2, 127: 8}[length])
			if !ok {
				return m
			}
			length = binary.BigEndian.Uint64(append(make([]byte, 8-len(long)), long...))
			if length > 1<<63-1 {
				m.end = "violation 1002"
				return m
			}
		}
		key, ok := take(4)
		if !ok {
			return m
		}
		control := opcode >= 8
		switch {
		case control && (opcode > 10 || !final || length > 125),
			!control && opcode > 2,
			!control && (opcode == 0) != within:
			m.end = "violation 1002"
			return m
		case !control && size+length > 1<<63-1:
			m.end = "violation 1009"
			return m
		}
		payload, ok := take(length)
		if !ok {
			return m
		}
		plain := make([]byte, len(payload))
		for i := range payload {
			plain[i] = payload[i] ^ key[i%4]
		}
		switch opcode {
		case closeFrame:
			m.end = modelClose(plain)
			return m
		case ping:
			m.pings = append(m.pings, string(plain))
		case pong:
		default:
			within, size, parts = !final, size+length, append(parts, plain...)
			if final {
				if size > uint64(limit) {
					e := transport.TooLargeError{Limit: int64(limit), Size: int64(size)}
					m.messages = append(m.messages, e.Error())
				} else {
					m.messages = append(m.messages, string(parts))
				}
				size, parts = 0, nil
			}
		}
	}
}

func modelClose(payload []byte) string {
	if len(payload) == 0 {
		return "peer 1000 "
	}
	if len(payload) == 1 || !utf8.Valid(payload[2:]) {
		return "violation 1002"
	}
	code := binary.BigEndian.Uint16(payload)
	if code < 1000 || code > 4999 || code > 1014 && code < 3000 || code >= 1004 && code <= 1006 {
		return "violation 1002"
	}
	return fmt.Sprintf("peer %d %s", code, payload[2:])
}

func FuzzWebSocketFrames(f *testing.F) {
	join := func(frames ...[]byte) []byte { return slices.Concat(frames...) }
	for _, seed := range [][]byte{
		join(frame(fin|text, "hello"), frame(fin|binaryFrame, ""), closing(1000, "bye")),
		join(frame(text, "a"), frame(fin|ping, "p"), frame(continuation, "b"), frame(fin|pong, "1"), frame(fin|continuation, "c")),
		join(frame(fin|text, strings.Repeat("x", 130)), frame(fin|text, "after"), frame(fin|closeFrame, "")),
		join(frame(text, strings.Repeat("x", 90)), frame(fin|continuation, strings.Repeat("y", 90)), masked(fin|text, 1<<63, nil)),
		join(frame(text, "a"), masked(continuation, 1<<63-1, nil)),
		join(frame(fin|text|0x40, "x")),
		{fin | text, 1, 'x'},
		{fin | text},
		closing(1005, ""), frame(fin|3, ""),
	} {
		f.Add(seed, []byte{0})
	}
	const limit = 100
	f.Fuzz(func(t *testing.T, data, sizes []byte) {
		want := modelFrames(data, limit)
		conn := &scriptConn{r: &chunks{r: bytes.NewReader(data), sizes: sizes}}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		near, err := transport.Upgrade(hijacker{httptest.NewRecorder(), conn}, request, limit)
		if err != nil {
			t.Fatal(err)
		}
		conn.wrote.Reset()
		messages, err := readAll(near)
		_ = near.Close(transport.Reason{Code: transport.CodeNormal})
		if !slices.Equal(messages, want.messages) {
			t.Fatalf("%x:\nmessages %q, want %q", data, messages, want.messages)
		}
		conn.mu.Lock()
		defer conn.mu.Unlock()
		if !conn.closed {
			t.Fatalf("%x: the socket was left open", data)
		}
		code := checkWritten(t, conn.wrote.Bytes(), want.pings)
		end := "other"
		switch peer := (*transport.PeerClosedError)(nil); {
		case err == io.EOF:
			end = "EOF"
		case errors.Is(err, io.ErrUnexpectedEOF):
			end = "cut off"
		case errors.As(err, &peer):
			end = fmt.Sprintf("peer %d %s", peer.Reason.Code, peer.Reason.Text)
			if code != peer.Reason.Code {
				t.Fatalf("%x: %s was answered with %d", data, end, code)
			}
		case strings.HasPrefix(err.Error(), "websocket protocol error"):
			end = fmt.Sprintf("violation %d", code)
		}
		if end != want.end {
			t.Fatalf("%x: ended with %v (%s), want %s", data, err, end, want.end)
		}
	})
}

// checkWritten wants pongs, some or all, in the order of the pings, and then
// one close frame, whose code it returns.
func checkWritten(t *testing.T, wrote []byte, pings []string) (code int) {
	r := bytes.NewReader(wrote)
	for {
		f, err := readFrame(r)
		if err != nil {
			t.Fatalf("written without a close frame: %x", wrote)
		}
		if f.first == fin|closeFrame && len(f.payload) >= 2 && r.Len() == 0 {
			return int(binary.BigEndian.Uint16(f.payload))
		}
		i := slices.Index(pings, string(f.payload))
		if f.first != fin|pong || i < 0 {
			t.Fatalf("wrote frame %v, pings left %q", f, pings)
		}
		pings = pings[i+1:]
	}
}
