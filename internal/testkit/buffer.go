package testkit

import (
	"bytes"
	"sync"
)

// Buffer keeps the bytes written to it. Its methods may be called concurrently. The
// zero value is ready to use.
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

// String returns the bytes written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// Tail returns at most the last n bytes written so far.
func (b *Buffer) Tail(n int) string {
	text := b.String()
	if len(text) > n {
		return "…" + text[len(text)-n:]
	}
	return text
}
