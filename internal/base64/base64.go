// Package base64 encodes and decodes the standard, padded alphabet of RFC 4648
// section 4 into caller-owned buffers, as strictly as the wire demands: no
// white space, no missing padding, no stray trailing bits. The standard
// library skips line breaks, which this wire refuses.
package base64

import (
	"bytes"
	stdbase64 "encoding/base64"
	"slices"

	fastbase64 "github.com/segmentio/asm/base64"
)

var strict = stdbase64.StdEncoding.Strict()

// EncodedLen returns the length in bytes of the encoding of n bytes.
func EncodedLen(n int) int { return stdbase64.StdEncoding.EncodedLen(n) }

// AppendEncode appends the encoding of src to dst and returns the extended
// buffer. It keeps no reference to src.
func AppendEncode(dst, src []byte) []byte {
	n := EncodedLen(len(src))
	from := len(dst)
	dst = slices.Grow(dst, n)[:from+n]
	fastbase64.StdEncoding.Encode(dst[from:], src)
	return dst
}

// AppendDecode appends the decoding of src to dst and returns the extended
// buffer. On error it returns dst unchanged and a CorruptInputError of
// encoding/base64. It keeps no reference to src.
func AppendDecode(dst, src []byte) ([]byte, error) {
	n := stdbase64.StdEncoding.DecodedLen(len(src))
	from := len(dst)
	out := slices.Grow(dst, n)[:from+n]
	done := decodeFast(out[from:], src[:max(0, len(src)-1)/4*4])
	n, err := decodeStrict(out[from:], src[done:], done)
	if err != nil {
		return dst, err
	}
	return out[:from+n], nil
}

// Decode decodes b into the memory that it is in. On error the error is a
// CorruptInputError of encoding/base64, and b has no meaning any more.
func Decode(b []byte) ([]byte, error) {
	// A block is decoded beside b, for the libraries do not say that they can decode
	// in place.
	var block [blockSymbols / 4 * 3]byte
	done := 0
	for ; len(b)-done > blockSymbols && decodeFast(block[:], b[done:done+blockSymbols]) > 0; done += blockSymbols {
		copy(b[done/4*3:], block[:])
	}
	rest := slices.Clone(b[done:])
	n, err := decodeStrict(b, rest, done)
	return b[:n], err
}

// blockSymbols is how many symbols Decode decodes at a time.
const blockSymbols = 4 << 10

// decodeFast decodes src, which is not the end of a text, into dst. It returns how
// many symbols it has decoded: all, or none if src has anything but symbols. The
// strict decoder gets the end, and what decodeFast has not decoded.
func decodeFast(dst, src []byte) (done int) {
	n, err := fastbase64.StdEncoding.Decode(dst, src)
	if err != nil || n != len(src)/4*3 { // it skips line breaks
		return 0
	}
	return len(src)
}

// decodeStrict decodes the rest of a text, into dst behind what the done symbols
// before it have become, and returns the length of all.
func decodeStrict(dst, rest []byte, done int) (int, error) {
	for _, c := range []byte("\r\n") { // faster than IndexAny by far
		if i := bytes.IndexByte(rest, c); i >= 0 {
			return 0, stdbase64.CorruptInputError(done + i)
		}
	}
	from := done / 4 * 3
	n, err := strict.Decode(dst[from:], rest)
	if corrupt, ok := err.(stdbase64.CorruptInputError); ok {
		return 0, stdbase64.CorruptInputError(done) + corrupt
	}
	return from + n, err
}
