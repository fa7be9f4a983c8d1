package client

import (
	"fmt"
	"sync"
)

// headTail keeps the beginning and the end of the bytes written to it, up to max bytes.
// It may be used concurrently.
type headTail struct {
	max int

	mu    sync.Mutex
	head  []byte
	tail  []byte // a ring once it is full
	at    int    // index of the oldest byte of a full tail
	total int64
}

// Write implements io.Writer.
func (h *headTail) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(b)
	h.total += int64(n)
	room := min(h.max/2-len(h.head), len(b))
	h.head = append(h.head, b[:room]...)
	b = b[room:]
	size := h.max - h.max/2
	if len(b) > size {
		b = b[len(b)-size:]
	}
	room = min(size-len(h.tail), len(b))
	h.tail = append(h.tail, b[:room]...)
	for b = b[room:]; len(b) > 0; {
		k := copy(h.tail[h.at:], b)
		h.at = (h.at + k) % size
		b = b[k:]
	}
	return n, nil
}

// bytes returns the kept bytes, with a line between them about the missing ones.
func (h *headTail) bytes() []byte {
	text, _ := h.contents(false)
	return text
}

// contents returns the kept bytes, and how many are missing, which a line between them says.
// With reset it starts again.
func (h *headTail) contents(reset bool) (text []byte, omitted int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	omitted = h.total - int64(len(h.head)+len(h.tail))
	text = append(text, h.head...)
	if omitted > 0 {
		text = fmt.Appendf(text, "\n[%d bytes omitted]\n", omitted)
	}
	text = append(text, h.tail[h.at:]...)
	text = append(text, h.tail[:h.at]...)
	if reset {
		h.head, h.tail, h.at, h.total = nil, nil, 0, 0
	}
	return text, omitted
}
