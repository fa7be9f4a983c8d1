//go:build unix

package transport_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transporttest"
	"execserver/transport"
)

// Bits and opcodes of the first byte of a frame (RFC 6455 section 5.2).
const (
	fin          = 0x80
	continuation = 0x0
	text         = 0x1
	binaryFrame  = 0x2
	closeFrame   = 0x8
	ping         = 0x9
	pong         = 0xA
)

// maskKey masks the frames of tests.
var maskKey = [4]byte{0xA5, 0x00, 0xFF, 0x17}

// masked is a frame from a client whose header announces length bytes.
func masked(first byte, length uint64, payload []byte) []byte {
	b := []byte{first}
	switch {
	case length <= 125:
		b = append(b, 0x80|byte(length))
	case length <= 65535:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(length))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), length)
	}
	b = append(b, maskKey[:]...)
	for i, c := range payload {
		b = append(b, c^maskKey[i%4])
	}
	return b
}

// frame is a whole frame from a client.
func frame(first byte, payload string) []byte {
	return masked(first, uint64(len(payload)), []byte(payload))
}

// closing is a client's close frame.
func closing(code int, reason string) []byte {
	return frame(fin|closeFrame, string(binary.BigEndian.AppendUint16(nil, uint16(code)))+reason)
}

// received is a frame from the server.
type received struct {
	first   byte
	payload []byte
}

func (f received) String() string {
	if len(f.payload) > 200 {
		return fmt.Sprintf("%#x with %d bytes", f.first, len(f.payload))
	}
	return fmt.Sprintf("%#x %q", f.first, f.payload)
}

// readFrame reads a frame from the server as RFC 6455 wants it.
func readFrame(r io.Reader) (f received, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	f.first = head[0]
	var b [8]byte
	length, least := uint64(head[1]), uint64(0)
	switch {
	case head[1] > 127:
		return f, errors.New("a masked frame")
	case head[1] == 127:
		_, err = io.ReadFull(r, b[:])
		length, least = binary.BigEndian.Uint64(b[:]), 65536
	case head[1] == 126:
		_, err = io.ReadFull(r, b[:2])
		length, least = uint64(binary.BigEndian.Uint16(b[:2])), 126
	}
	if err != nil || length < least || length > 1<<30 {
		return f, fmt.Errorf("bad length %d, %w", length, err)
	}
	f.payload = make([]byte, length)
	_, err = io.ReadFull(r, f.payload)
	return f, err
}

// rawPeer is a client that writes what it wants.
type rawPeer struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

const handshake = "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// dialRaw connects over TCP; first goes out together with the handshake.
func dialRaw(t testing.TB, limit int64, first ...byte) (transport.Pinger, *rawPeer) {
	near, peer := acceptWebSocket(t, limit, false, func(url string, _ *http.Client) (*rawPeer, error) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			return nil, err
		}
		p := &rawPeer{t, conn, bufio.NewReader(conn)}
		p.send(append([]byte(handshake), first...))
		return p, p.upgraded()
	})
	t.Cleanup(func() {
		_ = peer.conn.Close()
		_ = near.Close(transport.Reason{})
		for {
			if _, err := near.Read(nil); err != nil && !transporttest.TooLarge(err) {
				return
			}
		}
	})
	return near, peer
}

// upgraded reads the server's answer to the handshake.
func (p *rawPeer) upgraded() error {
	response, err := http.ReadResponse(p.r, nil)
	if err != nil {
		return err
	}
	if accept := response.Header.Get("Sec-WebSocket-Accept"); response.StatusCode != 101 || accept != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" ||
		!strings.EqualFold(response.Header.Get("Upgrade"), "websocket") || !strings.EqualFold(response.Header.Get("Connection"), "upgrade") ||
		response.Header.Get("Sec-WebSocket-Extensions") != "" || response.Header.Get("Sec-WebSocket-Protocol") != "" {
		return fmt.Errorf("answer to the handshake: %d %v", response.StatusCode, response.Header)
	}
	return nil
}

func (p *rawPeer) send(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Errorf("send: %v", err)
	}
}

// next reads the server's next frame.
func (p *rawPeer) next() received {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	f, err := readFrame(p.r)
	if err != nil {
		p.t.Fatalf("next frame: %v", err)
	}
	return f
}

// expect reads one frame and compares it.
func (p *rawPeer) expect(first byte, payload string) {
	p.t.Helper()
	if f := p.next(); f.first != first || string(f.payload) != payload {
		p.t.Errorf("got frame %v, want %#x %q", f, first, payload)
	}
}

// expectClose reads a close frame and then the end of the stream.
func (p *rawPeer) expectClose(code int, reason string) {
	p.t.Helper()
	f := p.next()
	if f.first != fin|closeFrame || len(f.payload) < 2 || int(binary.BigEndian.Uint16(f.payload)) != code || !strings.Contains(string(f.payload[2:]), reason) {
		p.t.Errorf("got frame %v, want a close frame with code %d (%#x) and %q", f, code, code, reason)
	}
	if b, err := p.r.ReadByte(); err != io.EOF {
		p.t.Errorf("after the close frame: %#x, %v", b, err)
	}
}

// readAll reads messages until the final error.
func readAll(near transport.Conn) (messages []string, err error) {
	for {
		msg, err := near.Read(nil)
		switch {
		case err == nil:
			messages = append(messages, string(msg))
		case transporttest.TooLarge(err):
			messages = append(messages, err.Error())
		default:
			return messages, err
		}
	}
}
