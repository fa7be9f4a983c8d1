package natstransport

import (
	"encoding/binary"
	"sync"
)

// segments are the memory of frames that Write fills.
var segments = sync.Pool{New: func() any {
	b := make([]byte, 0, headBytes+maxSegment)
	return &b
}}

// Write implements transport.Conn. It sends small messages in one frame.
func (c *Conn) Write(messages ...[]byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.ended(); err != nil {
		return err
	}
	space := segments.Get().(*[]byte)
	defer segments.Put(space)
	frame := (*space)[:headBytes]
	size := headBytes + c.segment
	for _, msg := range messages {
		var length [lengthBytes]byte
		binary.BigEndian.PutUint32(length[:], uint32(len(msg)))
		for _, part := range [...][]byte{length[:], msg} {
			for len(part) > 0 {
				n := min(len(part), size-len(frame))
				frame, part = append(frame, part[:n]...), part[n:]
				if len(frame) < size {
					continue
				}
				if err := c.sendData(frame); err != nil {
					return err
				}
				frame = frame[:headBytes]
			}
		}
	}
	if len(frame) > headBytes {
		return c.sendData(frame)
	}
	return nil
}

// sendData waits for credit for a frame of data, and sends it.
func (c *Conn) sendData(frame []byte) error {
	for !c.reserve(int64(len(frame) - headBytes)) {
		select {
		case <-c.granted:
		case <-c.done:
			return c.ended()
		}
	}
	return c.send(frameData, frame)
}

// reserve takes n bytes of credit, if available.
func (c *Conn) reserve(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.room < n {
		return false
	}
	c.room -= n
	return true
}
