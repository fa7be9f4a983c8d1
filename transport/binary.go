package transport

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
)

// BinaryCarrier is a Conn that can carry binary messages as well as JSON (PROTOCOL.md,
// "Binary messages"): Write takes them, and Read returns them. The first byte of a message
// tells which it is. Client and server send binary messages only where both have a
// BinaryCarrier.
type BinaryCarrier interface {
	Conn
	// AcceptBinary lets Read accept binary messages. It must not be called while Read runs.
	AcceptBinary()
}

// maxFormat is the highest first byte of a binary message. JSON begins with none of them.
const maxFormat = 1

func isBinary(msg []byte) bool { return len(msg) > 0 && msg[0] <= maxFormat }

// AcceptBinary implements BinaryCarrier. A WebSocket has binary messages of its own.
func (w *webSocket) AcceptBinary() {}

// AcceptBinary implements BinaryCarrier.
func (p *pipeEnd) AcceptBinary() {}

// AcceptBinary implements BinaryCarrier.
func (l *lines) AcceptBinary() { l.binary = true }

// frameMark begins a binary message where a line would begin. Four bytes with its length
// follow, and then the message.
const frameMark = 0

// frameFollows reports whether the next message is in a frame.
func (l *lines) frameFollows() bool {
	if !l.binary {
		return false
	}
	next, err := l.r.Peek(1)
	return err == nil && next[0] == frameMark
}

// firstStep is how much memory a frame gets at first: enough for 64 KiB of data.
const firstStep = 72 << 10

// frame reads the message in a frame. The memory grows with the bytes that arrive, not with
// the length in the header.
func (l *lines) frame(buf []byte) ([]byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(l.r, header[:]); err != nil {
		return nil, unexpected(err)
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	kept, tooLarge := size, size > l.limit
	if tooLarge {
		kept = min(size, prefixBytes)
	}
	for int64(len(buf)) < kept {
		from := len(buf)
		step := int(min(kept-int64(from), max(firstStep, 3*int64(from))))
		buf = slices.Grow(buf, step)[:from+step]
		if _, err := io.ReadFull(l.r, buf[from:]); err != nil {
			return nil, unexpected(err)
		}
	}
	if !tooLarge {
		return buf, nil
	}
	if _, err := io.CopyN(io.Discard, l.r, size-kept); err != nil {
		return nil, unexpected(err)
	}
	return nil, oversize(l.limit, size, buf)
}

// appendFrame appends a frame to what Write has collected. On a connection, it sends a large
// one at once instead, with what was collected before. A pipe has no call for that, and two
// writes would wake its reader twice.
func (l *lines) appendFrame(msg []byte) error {
	l.out = append(l.out, frameMark)
	l.out = binary.BigEndian.AppendUint32(l.out, uint32(len(msg)))
	if _, ok := l.w.(net.Conn); !ok || len(msg) <= copyBytes {
		l.out = append(l.out, msg...)
		return nil
	}
	l.vector = [2][]byte{l.out, msg}
	buffers := net.Buffers(l.vector[:])
	_, err := buffers.WriteTo(l.w)
	l.vector = [2][]byte{}
	l.out = l.out[:0]
	return err
}
