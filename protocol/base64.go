package protocol

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"

	fastbase64 "github.com/segmentio/asm/base64"
)

// strictBase64 is the standard, padded alphabet of RFC 4648, section 4, as strictly as the wire
// demands: no white space, no missing padding, no stray trailing bits. The standard library
// skips line breaks, which this wire refuses.
var strictBase64 = base64.StdEncoding.Strict()

// decodeBase64 decodes a string of standard base64.
func decodeBase64(raw json.RawMessage) ([]byte, error) {
	text, err := textOf(raw)
	if err != nil {
		return nil, err
	}
	return appendDecodedBase64(make([]byte, 0, len(text)/4*3), text)
}

// Base64Len returns the length of the standard base64 encoding of n bytes.
func Base64Len(n int) int { return base64.StdEncoding.EncodedLen(n) }

// AppendBase64 appends src in standard base64 to dst, and returns the extended
// buffer. It keeps no reference to src.
func AppendBase64(dst, src []byte) []byte {
	n := Base64Len(len(src))
	from := len(dst)
	dst = slices.Grow(dst, n)[:from+n]
	fastbase64.StdEncoding.Encode(dst[from:], src)
	return dst
}

// appendDecodedBase64 appends the decoding of src to dst and returns the extended
// buffer. On error it returns dst unchanged and a CorruptInputError of
// encoding/base64. It keeps no reference to src.
func appendDecodedBase64(dst, src []byte) ([]byte, error) {
	n := base64.StdEncoding.DecodedLen(len(src))
	from := len(dst)
	out := slices.Grow(dst, n)[:from+n]
	done := decodeBase64Fast(out[from:], src[:max(0, len(src)-1)/4*4])
	n, err := decodeBase64Strict(out[from:], src[done:], done)
	if err != nil {
		return dst, err
	}
	return out[:from+n], nil
}

// decodeBase64InPlace decodes b into its own memory. The error is a CorruptInputError of
// encoding/base64, after which b is invalid.
func decodeBase64InPlace(b []byte) ([]byte, error) {
	// Blocks are decoded into a buffer, because the libraries do not document that they can
	// decode in place.
	var block [base64Block / 4 * 3]byte
	done := 0
	for ; len(b)-done > base64Block && decodeBase64Fast(block[:], b[done:done+base64Block]) > 0; done += base64Block {
		copy(b[done/4*3:], block[:])
	}
	rest := slices.Clone(b[done:])
	n, err := decodeBase64Strict(b, rest, done)
	return b[:n], err
}

// base64Block is how many symbols decodeBase64InPlace decodes at a time.
const base64Block = 4 << 10

// decodeBase64Fast decodes src, which is not the end of a text, into dst. It returns the
// number of symbols decoded: all, or none if src contains anything but symbols. The strict
// decoder must decode the rest.
func decodeBase64Fast(dst, src []byte) (done int) {
	n, err := fastbase64.StdEncoding.Decode(dst, src)
	if err != nil || n != len(src)/4*3 { // it skips line breaks
		return 0
	}
	return len(src)
}

// decodeBase64Strict decodes the rest of a text into dst, after the output of the done symbols
// before it, and returns the length of the whole output.
func decodeBase64Strict(dst, rest []byte, done int) (int, error) {
	for _, c := range []byte("\r\n") { // faster than IndexAny by far
		if i := bytes.IndexByte(rest, c); i >= 0 {
			return 0, base64.CorruptInputError(done + i)
		}
	}
	from := done / 4 * 3
	n, err := strictBase64.Decode(dst[from:], rest)
	if corrupt, ok := err.(base64.CorruptInputError); ok {
		return 0, base64.CorruptInputError(done) + corrupt
	}
	return from + n, err
}
