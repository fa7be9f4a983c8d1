package stream

import "sync"

// chunkSize is the memory that a buffer takes at a time, and the largest payload of a frame. It is
// what a pipe holds; with more, system calls become hardly cheaper.
const chunkSize = 64 << 10

// A chunk has room for the header of a frame before its first byte, and after its last one.
type chunk [headerSize + chunkSize + headerSize]byte

// chunks are unused.
var chunks = sync.Pool{New: func() any { return new(chunk) }}

// A buffer is a queue of numbered bytes.
type buffer struct {
	start, end int64 // the numbers of the first byte, and of the one after the last
	base       int64 // the number of the first byte in chunks
	chunks     []*chunk
}

// tail returns room for bytes after the last one. Bytes become part of the buffer when the caller
// adds their count to end. Behind the room, within its capacity, is room for a header.
func (b *buffer) tail() []byte {
	if b.start == b.end {
		b.base = b.start // at most one chunk is left; fill it from its beginning
	}
	at := int(b.end - b.base)
	if at == len(b.chunks)*chunkSize {
		b.chunks = append(b.chunks, chunks.Get().(*chunk))
	}
	return b.chunks[at/chunkSize][headerSize+at%chunkSize : headerSize+chunkSize]
}

// frame returns contiguous bytes from number n on, and room for a header before them.
func (b *buffer) frame(n int64) []byte {
	at := int(n - b.base)
	i := at % chunkSize
	return b.chunks[at/chunkSize][i : headerSize+min(chunkSize, i+int(b.end-n))]
}

// discard removes the bytes before number n.
func (b *buffer) discard(n int64) {
	b.start = n
	free := 0
	for ; n-b.base >= chunkSize; free++ {
		chunks.Put(b.chunks[free])
		b.base += chunkSize
	}
	if free > 0 {
		rest := copy(b.chunks, b.chunks[free:])
		clear(b.chunks[rest:])
		b.chunks = b.chunks[:rest]
	}
}

// drop removes all bytes. Unlike discard it does not reuse their memory, which somebody may use.
func (b *buffer) drop() {
	b.start, b.base, b.chunks = b.end, b.end, nil
}
