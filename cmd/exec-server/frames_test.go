//go:build unix

package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// Opcodes of RFC 6455.
const (
	opText  = 1
	opClose = 8
	opPing  = 9
)

// frames is a WebSocket client that only does what the test says: it answers neither
// pings nor close frames.
type frames struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func openFrames(t *testing.T, p *program) *frames {
	t.Helper()
	conn, err := p.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	f := &frames{t, conn, bufio.NewReader(conn)}
	request := strings.ReplaceAll(upgrade+"|Host: "+p.address()+"||", "|", "\r\n")
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(f.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(response.Status)
	}
	return f
}

// write sends a text message.
func (f *frames) write(text string) {
	f.t.Helper()
	f.frame(opText, text)
}

// frame sends a frame of less than 126 bytes, masked with zeros.
func (f *frames) frame(opcode byte, payload string) {
	f.t.Helper()
	frame := append([]byte{0x80 | opcode, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)
	if _, err := f.conn.Write(frame); err != nil {
		f.t.Fatal(err)
	}
}

// until reads until a frame of this kind arrives.
func (f *frames) until(want byte) []byte {
	f.t.Helper()
	for {
		opcode, payload, err := f.read()
		if err != nil {
			f.t.Fatal(err)
		}
		if opcode == want {
			return payload
		}
		if opcode != opPing && opcode != opText {
			f.t.Fatalf("opcode %d, payload %q", opcode, payload)
		}
	}
}

func (f *frames) read() (opcode byte, payload []byte, err error) {
	header := make([]byte, 2)
	if _, err := io.ReadFull(f.r, header); err != nil {
		return 0, nil, err
	}
	length := int64(header[1])
	switch length {
	case 126:
		var n uint16
		err = binary.Read(f.r, binary.BigEndian, &n)
		length = int64(n)
	case 127:
		err = binary.Read(f.r, binary.BigEndian, &length)
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(f.r, payload)
	return header[0] & 0x0F, payload, err
}

// closes expects a close frame and then the end of the stream.
func (f *frames) closes(code uint16, reason string) {
	f.t.Helper()
	payload := f.until(opClose)
	if len(payload) < 2 {
		f.t.Fatalf("close frame with %q", payload)
	}
	if got := binary.BigEndian.Uint16(payload); got != code || string(payload[2:]) != reason {
		f.t.Errorf("closed with %d %q, want %d %q", got, payload[2:], code, reason)
	}
	if n, err := f.r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		f.t.Errorf("after the close frame: %d bytes, %v", n, err)
	}
}
