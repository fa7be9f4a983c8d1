package testkit

import (
	"bytes"
	"sync"
)

// Buffer collects what is written to it, which may be read meanwhile. The zero
// value is ready to use.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

// String is what has been written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// Tail is at most the last n bytes of it.
func (b *Buffer) Tail(n int) string {
	text := b.String()
	if len(text) > n {
		return "…" + text[len(text)-n:]
	}
	return text
}
