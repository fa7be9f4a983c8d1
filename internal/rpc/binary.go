package rpc

import (
	"bytes"

	"execserver/protocol"
	"execserver/transport"
)

// CarriesBinary reports whether the transport can carry binary messages.
func (c *Conn) CarriesBinary() bool {
	_, ok := c.stream.(transport.BinaryCarrier)
	return ok
}

// AcceptBinary accepts binary messages from the peer, if the transport can carry them. Only
// the reader may call it, or anybody before Run.
func (c *Conn) AcceptBinary() {
	if carrier, ok := c.stream.(transport.BinaryCarrier); ok {
		carrier.AcceptBinary()
		c.acceptsBinary = true
	}
}

// SendBinary sends what has data as binary messages from now on, because the peer accepts
// them.
func (c *Conn) SendBinary() { c.sendsBinary.Store(true) }

// SendsBinary reports whether SendBinary was called.
func (c *Conn) SendsBinary() bool { return c.sendsBinary.Load() }

// AcceptCompressed accepts compressed messages from the peer, as AcceptBinary does for
// binary ones. It must be called after it.
func (c *Conn) AcceptCompressed() { c.acceptsCompressed = true }

// AcceptsCompressed reports whether AcceptCompressed was called.
func (c *Conn) AcceptsCompressed() bool { return c.acceptsCompressed }

// SendCompressed compresses binary messages from now on, where that pays, because the peer
// accepts them.
func (c *Conn) SendCompressed() { c.sendsCompressed.Store(true) }

// compress returns what to send for a message: msg, or its compressed form, in the memory of
// space if that suffices.
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
	buffers.put(buf)
	plain.b = b
	return plain, nil
}

// encode encodes a message whose params or result are v. envelope appends the message with
// what stands for v.
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

// parse parses a message. binary says that it is a binary one.
func (c *Conn) parse(msg []byte) (m protocol.Message, binary bool, err error) {
	if c.acceptsBinary && protocol.IsBinary(msg) {
		m, err = protocol.ParseBinary(msg)
		return m, true, err
	}
	m, err = protocol.ParseMessage(msg)
	return m, false, err
}

// keepData returns the data of a message, for somebody who keeps it longer than the
// message's buffer. The data takes the memory of the buffer with it, unless that is much
// more.
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
