package natstransport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"execserver/transport"
)

// receive handles a frame that NATS has delivered. It does not block.
func (c *Conn) receive(frame []byte) {
	kind, number, body, err := parse(frame)
	if err != nil {
		c.fail(err)
		return
	}
	if kind == frameReset {
		c.finish(fmt.Errorf("%w: it knows no such connection", ErrLost))
		return
	}
	if cause := c.take(kind, number, body); cause != nil {
		if _, closed := errors.AsType[*transport.PeerClosedError](cause); closed {
			c.finish(cause)
			return
		}
		c.fail(cause)
	}
}

// take queues or handles a frame. An error ends the connection.
func (c *Conn) take(kind byte, number uint64, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number != c.next {
		return fmt.Errorf("%w: number %d came instead of %d", ErrGap, number, c.next)
	}
	c.next++
	c.silent = 0
	switch kind {
	case frameAlive:
		return nil
	case frameClose:
		return &transport.PeerClosedError{Reason: parseReason(body)}
	case frameCredit:
		// The frame has the bytes that the peer has consumed, so it cannot grant more than its
		// window.
		return c.grant(int64(binary.BigEndian.Uint64(body)))
	case framePing, framePong:
		if c.controls++; c.controls > maxControls {
			return fmt.Errorf("more than %d pings wait to be read", maxControls)
		}
	case frameData:
		if c.waiting += int64(len(body)); c.waiting > c.window {
			return fmt.Errorf("the peer sent more than its credit of %d bytes", c.window)
		}
		c.received.Add(uint64(len(body)))
	}
	if !c.join(kind, body) {
		c.queue = append(c.queue, queued{kind, body})
	}
	wake(c.arrived)
	return nil
}

// smallFrame and joinedFrames bound the frames that are copied into one.
const (
	smallFrame   = 2 << 10
	joinedFrames = 32 << 10
)

// join appends a small frame of data to the last frame in the queue, if it fits. So a peer that
// sends its window as millions of small frames uses no more memory than the window. The caller
// must hold mu.
func (c *Conn) join(kind byte, body []byte) bool {
	if kind != frameData || len(c.queue) == 0 || len(body) > smallFrame {
		return false
	}
	last := &c.queue[len(c.queue)-1]
	if last.kind != frameData || len(last.body)+len(body) > joinedFrames {
		return false
	}
	last.body = append(last.body, body...)
	return true
}

// grant adds credit for the bytes that the peer has consumed. The caller must hold mu.
func (c *Conn) grant(consumed int64) error {
	more := consumed + c.theirs - c.allowed
	if more < 0 || consumed > c.allowed-c.room {
		return errFrame
	}
	c.room, c.allowed = c.room+more, c.allowed+more
	wake(c.granted)
	return nil
}

// Read implements transport.Conn.
func (c *Conn) Read(buf []byte) ([]byte, error) {
	var head [lengthBytes]byte
	if _, err := c.fill(head[:0], lengthBytes); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if c.bound > 0 && size > c.total {
		err := fmt.Errorf("the client sent more than %d bytes before it initialized the connection", c.bound)
		c.fail(err)
		return nil, err
	}
	c.total -= size
	if size > c.limit {
		return nil, c.skip(size)
	}
	return c.fill(buf[:0], size)
}

// prefixBytes is the length of TooLargeError.Prefix.
const prefixBytes = 4 << 10

// skip reads a message above the limit.
func (c *Conn) skip(size int64) error {
	kept := min(size, prefixBytes)
	prefix, err := c.fill(nil, kept)
	for rest := size - kept; rest > 0 && err == nil; {
		var part []byte
		part, err = c.part(rest)
		rest -= int64(len(part))
	}
	if err != nil {
		return err
	}
	return &transport.TooLargeError{Limit: c.limit, Size: size, Prefix: prefix}
}

// firstStep is the initial memory of a message.
const firstStep = 72 << 10

// fill appends n bytes of the stream to buf. The memory grows with the bytes that arrive,
// not with the length that the peer announces.
func (c *Conn) fill(buf []byte, n int64) ([]byte, error) {
	for n > 0 {
		part, err := c.part(n)
		if err != nil {
			return nil, err
		}
		if len(part) > cap(buf)-len(buf) {
			step := min(n, max(firstStep, 3*int64(len(buf)), int64(len(part))))
			if err := c.grow(int64(len(buf)-cap(buf)) + step); err != nil {
				return nil, err
			}
			buf = slices.Grow(buf, int(step))
		}
		buf = append(buf, part...)
		n -= int64(len(part))
	}
	return buf, nil
}

// grow calls onGrow before the memory of a message grows, and ends the connection if it fails.
func (c *Conn) grow(bytes int64) error {
	if c.onGrow == nil {
		return nil
	}
	err := c.onGrow(bytes)
	if err != nil && c.finish(err) {
		c.sendClose(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()})
	}
	return err
}

// part returns up to n bytes of the stream, which remain valid.
func (c *Conn) part(n int64) ([]byte, error) {
	for len(c.rest) == 0 {
		if err := c.await(); err != nil {
			return nil, err
		}
	}
	part := c.rest[:min(n, int64(len(c.rest)))]
	if c.rest = c.rest[len(part):]; len(c.rest) == 0 {
		c.rest = nil
		c.tell()
	}
	return part, nil
}

// await waits for a frame, and handles it.
func (c *Conn) await() error {
	for {
		if c.closing.Load() {
			return transport.ErrClosed
		}
		frame, ok, cause := c.pop()
		switch {
		case ok:
			return c.handle(frame)
		case cause != nil:
			return cause
		}
		select {
		case <-c.arrived:
		case <-c.done:
		}
	}
}

// pop removes the first frame from the queue. cause is set if there will be no more.
func (c *Conn) pop() (frame queued, ok bool, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		c.queue = nil
		return queued{}, false, c.cause
	}
	frame = c.queue[0]
	c.queue[0] = queued{}
	c.queue = c.queue[1:]
	if frame.kind == frameData {
		c.waiting -= int64(len(frame.body))
	} else {
		c.controls--
	}
	return frame, true, nil
}

func (c *Conn) handle(frame queued) error {
	switch frame.kind {
	case frameData:
		c.rest = frame.body
		c.consumed += int64(len(frame.body))
	case framePing:
		payload := binary.BigEndian.Uint64(frame.body)
		if c.onPing != nil {
			c.onPing(payload)
		} else {
			_ = c.Pong(payload) // the next wait notices the end
		}
	case framePong:
		if c.onPong != nil {
			c.onPong(binary.BigEndian.Uint64(frame.body))
		}
	}
	return nil
}

// tell lets the peer send as much as was consumed, if that is worth a frame.
func (c *Conn) tell() {
	if c.consumed-c.told < c.window/4 {
		return
	}
	c.told = c.consumed
	_ = c.sendNumber(frameCredit, uint64(c.consumed)) // the next wait notices the end
}
