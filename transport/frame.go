package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The opcodes of RFC 6455 section 5.2.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA
)

const (
	finBit  = 0x80
	rsvBits = 0x70
	maskBit = 0x80

	maxControlBytes = 125
)

// frameHeader is the header of a frame. mask is zero in a frame from a server.
type frameHeader struct {
	fin    bool
	opcode byte
	length int64
	mask   [4]byte
}

func (h frameHeader) control() bool { return h.opcode >= opClose }

// violation returns the error for a violation of RFC 6455, or of a limit.
func violation(code int, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &endError{Reason{code, text}, errors.New("websocket protocol error: " + text)}
}

// readHeader reads the header of the next frame. The frame must be masked if and only if
// it comes from a client.
func readHeader(r *bufio.Reader, fromClient bool) (h frameHeader, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return h, err
	}
	h.fin = b[0]&finBit != 0
	h.opcode = b[0] & 0x0F
	if b[0]&rsvBits != 0 {
		return h, violation(CodeProtocolError, "reserved bits set, no extension was negotiated")
	}
	switch masked := b[1]&maskBit != 0; {
	case fromClient && !masked:
		return h, violation(CodeProtocolError, "frame from a client is not masked")
	case !fromClient && masked:
		return h, violation(CodeProtocolError, "frame from a server is masked")
	}
	switch length := b[1] &^ maskBit; length {
	case 126:
		if _, err := io.ReadFull(r, b[:2]); err != nil {
			return h, unexpected(err)
		}
		h.length = int64(binary.BigEndian.Uint16(b[:2]))
	case 127:
		if _, err := io.ReadFull(r, b[:8]); err != nil {
			return h, unexpected(err)
		}
		h.length = int64(binary.BigEndian.Uint64(b[:8]))
		if h.length < 0 {
			return h, violation(CodeProtocolError, "frame length has its highest bit set")
		}
	default:
		h.length = int64(length)
	}
	if fromClient {
		if _, err := io.ReadFull(r, h.mask[:]); err != nil {
			return h, unexpected(err)
		}
	}
	switch h.opcode {
	case opContinuation, opText, opBinary:
	case opClose, opPing, opPong:
		if !h.fin || h.length > maxControlBytes {
			return h, violation(CodeProtocolError, "control frame is fragmented or longer than %d bytes", maxControlBytes)
		}
	default:
		return h, violation(CodeProtocolError, "unknown opcode %#x", h.opcode)
	}
	return h, nil
}

// appendHeader appends the header of an unmasked frame.
func appendHeader(b []byte, fin bool, opcode byte, length int) []byte {
	if fin {
		opcode |= finBit
	}
	b = append(b, opcode)
	switch {
	case length <= 125:
		return append(b, byte(length))
	case length <= 0xFFFF:
		return binary.BigEndian.AppendUint16(append(b, 126), uint16(length))
	}
	return binary.BigEndian.AppendUint64(append(b, 127), uint64(length))
}

// applyMask applies the key to b, whose first byte is at offset in the payload. Applying
// it twice restores b.
func applyMask(b []byte, key [4]byte, offset int64) {
	if key == [4]byte{} {
		return
	}
	var k [8]byte
	for i := range k {
		k[i] = key[(offset+int64(i))&3]
	}
	word := binary.LittleEndian.Uint64(k[:])
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^word)
		b = b[8:]
	}
	for i := range b {
		b[i] ^= k[i]
	}
}

// maxFormat is the highest first byte of a binary message. JSON begins with none of them.
const maxFormat = 1

func isBinary(msg []byte) bool { return len(msg) > 0 && msg[0] <= maxFormat }

// opcodeOf returns the opcode of a message's first frame.
func opcodeOf(msg []byte) byte {
	if isBinary(msg) {
		return opBinary
	}
	return opText
}
