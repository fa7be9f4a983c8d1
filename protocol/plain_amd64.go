package protocol

import "golang.org/x/sys/cpu"

var hasAVX2 = cpu.X86.HasAVX2

// plainAVX2 returns how many bytes at p are plain text, up to all those of blocks
// of 32 bytes, of which there is one at least, and whether a byte of the blocks
// that it has looked at is not ASCII.
//
//go:noescape
func plainAVX2(p *byte, blocks int) (n int, wide bool)

// plainFast does what plainLen does for whole blocks, where that is quick.
func plainFast(b []byte) (n int, wide bool) {
	if !hasAVX2 || len(b) < 32 {
		return 0, false
	}
	return plainAVX2(&b[0], len(b)/32)
}
