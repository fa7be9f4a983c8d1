package natstransport

import (
	"encoding/binary"
	"errors"

	"execserver/transport"
)

// Kinds of frames. Every frame begins with its kind (1 byte) and its number (8 bytes). The
// numbers of each direction start at 1 without gaps.
const (
	frameData   = 'd' // a piece of the stream of messages, each of which follows its length in 4 bytes
	frameCredit = 'c' // 8 bytes: how many bytes of the stream the sender of this frame has consumed
	frameAlive  = 'a' // empty; a keepalive
	framePing   = 'p' // 8 bytes, to be sent back
	framePong   = 'q' // the 8 bytes of a ping
	frameClose  = 'x' // 2 bytes, the code, and a text: the sender has closed the connection
	frameReset  = 'r' // no number: the sender knows no such connection
)

const (
	headBytes   = 9         // of a frame
	lengthBytes = 4         // before a message
	maxSegment  = 256 << 10 // of the stream in one frame
)

// errFrame reports that a peer does not speak this protocol.
var errFrame = errors.New("the peer sent an invalid frame")

// putHead fills in the head of a frame.
func putHead(frame []byte, kind byte, number uint64) {
	frame[0] = kind
	binary.BigEndian.PutUint64(frame[1:], number)
}

// parse takes a frame apart.
func parse(frame []byte) (kind byte, number uint64, body []byte, err error) {
	if len(frame) == 0 {
		return 0, 0, nil, errFrame
	}
	if frame[0] == frameReset {
		return frameReset, 0, nil, nil
	}
	if len(frame) < headBytes {
		return 0, 0, nil, errFrame
	}
	kind, number, body = frame[0], binary.BigEndian.Uint64(frame[1:]), frame[headBytes:]
	good := false
	switch kind {
	case frameData:
		good = len(body) > 0 && len(body) <= maxSegment
	case frameCredit, framePing, framePong:
		good = len(body) == 8
	case frameAlive:
		good = len(body) == 0
	case frameClose:
		good = len(body) >= 2
	}
	if !good {
		return 0, 0, nil, errFrame
	}
	return kind, number, body, nil
}

// maxReason is the size of the text of a Reason.
const maxReason = 123

func appendReason(b []byte, r transport.Reason) []byte {
	code := r.Code
	if code == 0 {
		code = transport.CodeNormal
	}
	b = binary.BigEndian.AppendUint16(b, uint16(code))
	return append(b, r.Text[:min(len(r.Text), maxReason)]...)
}

func parseReason(body []byte) transport.Reason {
	return transport.Reason{Code: int(binary.BigEndian.Uint16(body)), Text: string(body[2:min(len(body), 2+maxReason)])}
}
