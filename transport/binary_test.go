//go:build unix

package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transporttest"
	"execserver/transport"
)

// stream returns a Conn whose peer has said everything already. It accepts binary messages
// if accept is set.
func stream(t *testing.T, said []byte, limit int64, accept bool) transport.Conn {
	t.Helper()
	conn := transport.NewLines("test", bytes.NewReader(said), io.Discard, func() error { return nil }, limit)
	if accept {
		conn.(transport.BinaryCarrier).AcceptBinary()
	}
	return conn
}

func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...)
}

func TestFramesBetweenLines(t *testing.T) {
	a, b := net.Pipe()
	near, far := transport.NewStream(a), transport.NewStream(b)
	defer near.Close(transport.Reason{})
	defer far.Close(transport.Reason{})
	far.(transport.BinaryCarrier).AcceptBinary()
	var messages [][]byte
	for i, size := range transporttest.Sizes {
		binary := transporttest.Message(i, size)
		binary[0] = byte(i % 2) // the formats
		messages = append(messages, binary, []byte(`{"id":1}`), append([]byte{0}, "\n\n\r\n"...))
	}
	wrote := make(chan error, 1)
	go func() { wrote <- near.Write(messages...) }()
	testkit.Within(t, "exchange", func() {
		for i, want := range messages {
			got, err := far.Read(nil)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("message %d: %v, %d bytes, want %d", i, err, len(got), len(want))
				return
			}
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	})
}

func TestFrameAboveLimit(t *testing.T) {
	large := append([]byte{0}, bytes.Repeat([]byte("a"), 100<<10)...)
	said := append(framed(large), framed([]byte("\x00next"))...)
	conn := stream(t, said, 64<<10, true)
	_, err := conn.Read(nil)
	tooLarge, ok := errors.AsType[*transport.TooLargeError](err)
	if !ok || tooLarge.Size != int64(len(large)) || tooLarge.Limit != 64<<10 || !bytes.HasPrefix(large, tooLarge.Prefix) || len(tooLarge.Prefix) == 0 {
		t.Fatalf("%v", err)
	}
	if got, err := conn.Read(nil); err != nil || string(got) != "\x00next" {
		t.Errorf("then %q, %v", got, err)
	}
}

// TestShortFrameAboveLimit sets a limit below what is kept of a message above it.
func TestShortFrameAboveLimit(t *testing.T) {
	conn := stream(t, append(framed(make([]byte, 200)), framed([]byte("\x00next"))...), 100, true)
	if _, err := conn.Read(nil); !errors.As(err, new(*transport.TooLargeError)) {
		t.Errorf("%v", err)
	}
	if got, err := conn.Read(nil); err != nil || string(got) != "\x00next" {
		t.Errorf("then %q, %v", got, err)
	}
}

// TestFrameCutOff sends less than the header of a frame says.
func TestFrameCutOff(t *testing.T) {
	whole := framed(append([]byte{0}, make([]byte, 60<<20)...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, n := range []int{1, 4, 5, 6, 100 << 10} {
		if _, err := stream(t, whole[:n], 0, true).Read(nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("the lengths in the headers cost %d bytes", used)
	}
}

// TestNoFramesUnasked reads what looks like a frame as a line, as long as nobody accepts
// binary messages.
func TestNoFramesUnasked(t *testing.T) {
	said := append(framed([]byte("\x00abc")), '\n')
	if got, err := stream(t, said, 0, false).Read(nil); err != nil || !bytes.Equal(got, said[:len(said)-1]) {
		t.Errorf("%q, %v", got, err)
	}
}
