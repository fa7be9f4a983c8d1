package base64

import "golang.org/x/sys/cpu"

var hasAVX2 = cpu.X86.HasAVX2

// encodeAVX2 encodes blocks of 24 bytes into 32 symbols; it reads 4 bytes more
// than the last block has.
//
//go:noescape
func encodeAVX2(dst, src *byte, blocks int)

// decodeAVX2 decodes blocks of 32 symbols into 24 bytes, up to the first block
// with a byte that is no symbol, and returns how many blocks are left. It writes
// 8 bytes more than the last block has; dst may be src.
//
//go:noescape
func decodeAVX2(dst, src *byte, blocks int) (left int)

// encodeFast encodes as much of src into dst, which is large enough, as goes in
// one sweep; n is how many bytes of src that was, a multiple of 3.
func encodeFast(dst, src []byte) (n int) {
	const block, reads = 24, 28
	if !hasAVX2 || len(src) < reads {
		return 0
	}
	blocks := (len(src)-reads)/block + 1
	encodeAVX2(&dst[0], &src[0], blocks)
	return blocks * block
}

// decodeFast decodes as much of src into dst as goes in one sweep; n is how many
// symbols that was, a multiple of 4. It stops short of what is not a symbol. dst
// may begin where src does; the rest of src is left as it is.
func decodeFast(dst, src []byte) (n int) {
	const block, symbols, writes = 24, 32, 32
	if !hasAVX2 || len(dst) < writes {
		return 0
	}
	blocks := min(len(src)/symbols, (len(dst)-writes)/block+1)
	if blocks == 0 {
		return 0
	}
	return (blocks - decodeAVX2(&dst[0], &src[0], blocks)) * symbols
}
