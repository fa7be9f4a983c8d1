package protocol

import "golang.org/x/sys/cpu"

var hasAVX2 = cpu.X86.HasAVX2

// plainAVX2 returns how many bytes at p are plain text, up to all those of blocks
// of 32 bytes, of which there is one at least.
//
//go:noescape
func plainAVX2(p *byte, blocks int) int

// plainFast does what plainLen does for whole blocks, where that is quick.
func plainFast(b []byte) int {
	if !hasAVX2 || len(b) < 32 {
		return 0
	}
	return plainAVX2(&b[0], len(b)/32)
}
