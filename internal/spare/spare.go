// Package spare keeps large buffers for their next use. The system takes longer
// to find and clear that much memory than a message of that size takes to pass.
// What is not used again is left to the garbage collector.
package spare

import (
	"math/bits"
	"slices"
	"sync"
)

// Buffers from minBytes to maxBytes are kept, by powers of two.
const (
	minBytes = 1 << 20
	maxBytes = 64 << 20
)

var pools [32]sync.Pool // of *[]byte with a capacity of 1<<index

// Get returns an empty buffer with room for n bytes. Any number of goroutines may
// call it. Its memory is not cleared.
func Get(n int) []byte {
	if n < minBytes || n > maxBytes {
		return make([]byte, 0, n)
	}
	class := bits.Len(uint(n - 1))
	if b, ok := pools[class].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, 1<<class)
}

// Grow makes room for n bytes after b, whose memory it takes if there is none.
func Grow(b []byte, n int) []byte {
	if len(b)+n < minBytes || cap(b)-len(b) >= n {
		return slices.Grow(b, n)
	}
	grown := append(Get(len(b)+n), b...)
	Put(b)
	return grown
}

// Put takes a buffer back, which nobody may use any more. It takes any, and
// keeps those that Get and Grow have made.
func Put(b []byte) {
	n := cap(b)
	if n < minBytes || n > maxBytes || n&(n-1) != 0 {
		return
	}
	b = b[:0]
	pools[bits.Len(uint(n-1))].Put(&b)
}
