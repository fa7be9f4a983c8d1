package fleet

import (
	"fmt"
	"time"

	"execserver/transport"
)

// maxHeld bounds the memory that large messages take in a gateway on their way, in bytes.
const maxHeld = 1 << 30

// keptBuffer is the size up to which a direction keeps its buffer for the next message, and up
// to which its memory does not count in maxHeld.
const keptBuffer = 256 << 10

// A message waits for memory for holdTimeout at most: those that have some may be waiting for
// more, too. Then its connection ends, and the client comes back.
const (
	holdTimeout = 5 * time.Second
	holdPause   = 50 * time.Millisecond
)

// buffer is the memory of one direction of a relay, for one message at a time.
type buffer struct {
	msg  []byte
	size int64 // of the memory of the message
	held int64 // how much of size counts in maxHeld
	hold func(bytes int64) error
}

// buffer returns the memory for the messages of one side.
func (r *relay) buffer(from transport.Conn) *buffer {
	b := &buffer{hold: r.hold}
	if growing, ok := from.(transport.Growing); ok {
		growing.OnGrow(b.grow)
	}
	return b
}

// read reads a message. It is valid until the next call of a method.
func (b *buffer) read(from transport.Conn) (msg []byte, err error) {
	b.msg, err = from.Read(b.msg)
	return b.msg, err
}

// written says that the message has gone. The next one may be long in coming.
func (b *buffer) written() {
	if cap(b.msg) > keptBuffer {
		b.free()
	}
}

func (b *buffer) grow(bytes int64) error {
	if more := b.size + bytes - keptBuffer - b.held; more > 0 {
		if err := b.hold(more); err != nil {
			return err
		}
		b.held += more
	}
	b.size += bytes
	return nil
}

// free drops the memory.
func (b *buffer) free() {
	if b.held > 0 {
		_ = b.hold(-b.held) // giving back does not fail
	}
	b.msg, b.size, b.held = nil, 0, 0
}

// hold takes memory for large messages, or gives it back if bytes is below 0.
func (v *visit) hold(bytes int64) error {
	if bytes < 0 {
		v.held.give(v.by.Principal, -bytes)
		return nil
	}
	for giveUp := time.Now().Add(holdTimeout); ; {
		limit := v.held.take(v.by.Principal, v.several(), bytes)
		if limit == 0 {
			return nil
		}
		if time.Now().After(giveUp) || !sleep(v.ctx, holdPause) {
			return &reasonError{transport.Reason{
				Code: transport.CodeTryAgainLater,
				Text: fmt.Sprintf("the gateway has its limit of %d bytes of messages on their way; try again", limit),
			}}
		}
	}
}
