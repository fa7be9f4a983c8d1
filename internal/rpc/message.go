package rpc

import (
	"bytes"
	"sync"

	"execserver/protocol"
	"execserver/transport"
)

// CarriesBinary reports whether the transport can carry binary messages.
func (c *Conn) CarriesBinary() bool {
	_, ok := c.stream.(transport.BinaryCarrier)
	return ok
}

// AcceptBinary accepts binary messages from the peer, if the transport can carry them. Only
// the reader may call it, or any goroutine before Run.
func (c *Conn) AcceptBinary() {
	if carrier, ok := c.stream.(transport.BinaryCarrier); ok {
		carrier.AcceptBinary()
		c.acceptsBinary = true
	}
}

// SendBinary sends messages with data as binary messages from now on, because the peer
// accepts them.
func (c *Conn) SendBinary() { c.sendsBinary.Store(true) }

// SendsBinary reports whether SendBinary was called.
func (c *Conn) SendsBinary() bool { return c.sendsBinary.Load() }

// AcceptCompressed accepts compressed messages from the peer, as AcceptBinary does for
// binary ones. It must be called after it.
func (c *Conn) AcceptCompressed() { c.acceptsCompressed = true }

// AcceptsCompressed reports whether AcceptCompressed was called.
func (c *Conn) AcceptsCompressed() bool { return c.acceptsCompressed }

// SendCompressed compresses binary messages from now on, if that makes them smaller, because
// the peer accepts them.
func (c *Conn) SendCompressed() { c.sendsCompressed.Store(true) }

// encode encodes a message with the params or the result v. envelope appends the message
// with v, or with the part of v that a binary message has as JSON.
func (c *Conn) encode(v any, envelope func(b []byte, v any) ([]byte, error)) ([]byte, error) {
	if !c.SendsBinary() {
		return envelope(nil, v)
	}
	head, data, ok := protocol.Split(v)
	if !ok {
		return envelope(nil, v)
	}
	var space [512]byte
	text, err := envelope(space[:0], head)
	if err != nil {
		return nil, err
	}
	return c.compress(nil, protocol.AppendBinary(make([]byte, 0, len(text)+len(data)+8), text, data)), nil
}

// parse parses a message, and reports whether it is a binary one.
func (c *Conn) parse(msg []byte) (m protocol.Message, binary bool, err error) {
	if c.acceptsBinary && protocol.IsBinary(msg) {
		m, err = protocol.ParseBinary(msg)
		return m, true, err
	}
	m, err = protocol.ParseMessage(msg)
	return m, false, err
}

// compress returns msg or its compressed form, which uses the memory of space if that
// suffices.
func (c *Conn) compress(space, msg []byte) []byte {
	if !c.sendsCompressed.Load() || !protocol.IsBinary(msg) {
		return msg
	}
	if small, ok := c.compressor.Append(space[:0], msg); ok {
		return small
	}
	return msg
}

// expand replaces a compressed message by the plain one.
func (c *Conn) expand(buf *buffer) (*buffer, error) {
	if !c.acceptsCompressed || !IsCompressed(buf.b) {
		return buf, nil
	}
	plain := buffers.get()
	b, err := Decompress(plain.b[:0], buf.b, c.opts.MaxMessageBytes)
	if err != nil {
		buffers.put(plain)
		return buf, err
	}
	plain.b = b
	if err := plain.grow(int64(cap(b)), c.opts.Memory); err != nil {
		buffers.put(plain)
		return buf, err
	}
	buffers.put(buf)
	return plain, nil
}

// buffer holds one message.
type buffer struct {
	b     []byte
	grown int64             // how many bytes its memory grew by
	count func(int64) error // Options.Memory, if it counts some of them
}

// freeBytes is how much memory a message may have that Options.Memory does not count.
const freeBytes = 256 << 10

// grow counts the memory by which a buffer is about to grow.
func (b *buffer) grow(more int64, count func(int64) error) error {
	before := b.held()
	b.grown += more
	over := b.held() - before
	if over == 0 || count == nil {
		return nil
	}
	if err := count(over); err != nil {
		b.grown -= more
		return err
	}
	b.count = count
	return nil
}

// held returns how many bytes are counted.
func (b *buffer) held() int64 { return max(0, b.grown-freeBytes) }

// keepBytes is the size of the largest buffer that is kept for any message: of a binary one
// with 64 KiB of data.
const keepBytes = 72 << 10

// buffers recycles the memory of messages.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) get() *buffer {
	if b, ok := p.pool.Get().(*buffer); ok {
		return b
	}
	return new(buffer)
}

func (p *bufferPool) put(b *buffer) {
	if b.count != nil {
		_ = b.count(-b.held()) // giving back does not fail
	}
	b.grown, b.count = 0, nil
	if cap(b.b) > keepBytes {
		b.b = nil
	}
	p.pool.Put(b)
}

// keepData returns the data of a message for use after the message's buffer is released. It
// takes over the memory of the buffer, or copies the data if the buffer is much larger.
func keepData(data []byte, buf *buffer) []byte {
	if data == nil {
		return nil
	}
	if cap(buf.b) > 2*len(data) {
		return bytes.Clone(data)
	}
	buf.b = nil
	return data
}
