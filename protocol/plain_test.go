package protocol

import (
	"bytes"
	"testing"
)

// TestPlainLen puts every byte at every place of texts of all lengths around the
// blocks in which they are looked at.
func TestPlainLen(t *testing.T) {
	for length := range 140 {
		text := bytes.Repeat([]byte{'a'}, length)
		for at := -1; at < length; at++ {
			for c := range 256 {
				want, wide := length, c >= 0x80 && at >= 0
				if at >= 0 {
					text[at] = byte(c)
					if c < 0x20 || c == '"' || c == '\\' {
						want = at
					}
				}
				if got, w := plainLen(text); got != want || w != wide {
					t.Fatalf("plainLen: %d %t, want %d %t: byte %#x at %d of %d", got, w, want, wide, c, at, length)
				}
			}
			if at >= 0 {
				text[at] = 'a'
			}
		}
	}
}
