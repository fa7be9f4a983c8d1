// Package base64 encodes and decodes the standard, padded alphabet of RFC 4648
// section 4 into caller-owned buffers, as strictly as the wire demands: no
// white space, no missing padding, no stray trailing bits. The standard
// library skips line breaks, which this wire refuses.
package base64

import (
	"bytes"
	stdbase64 "encoding/base64"
	"errors"
	"fmt"
	"slices"

	fastbase64 "github.com/segmentio/asm/base64"
)

var strict = stdbase64.StdEncoding.Strict()

// Error says why a text is not standard base64. Its texts are those that
// clients of the wire know.
type Error struct {
	text string
}

func (e *Error) Error() string { return e.text }

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
// buffer. On error it returns dst unchanged and an *Error. It keeps no
// reference to src.
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

// Decode decodes b into the memory that it is in. On error the error is an
// *Error, and b has no meaning any more.
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
		if bytes.IndexByte(rest, c) >= 0 {
			return 0, invalidSymbol(rest, done, bytes.IndexAny(rest, "\r\n"))
		}
	}
	from := done / 4 * 3
	n, err := strict.Decode(dst[from:], rest)
	if err != nil {
		return 0, explain(rest, done, err)
	}
	return from + n, nil
}

// explain turns the library's offset into the texts of the wire. The done symbols
// before rest are valid.
func explain(rest []byte, done int, err error) error {
	var corrupt stdbase64.CorruptInputError
	if !errors.As(err, &corrupt) {
		return &Error{err.Error()}
	}
	for i, c := range rest {
		if !inAlphabet(c) && c != '=' {
			return invalidSymbol(rest, done, i)
		}
	}
	body := bytes.TrimRight(rest, "=")
	if i := bytes.IndexByte(body, '='); i >= 0 {
		return invalidSymbol(rest, done, i)
	}
	padding := len(rest) - len(body)
	if len(body)%4 == 1 || padding > 2 || len(rest)%4 != 0 {
		return &Error{"Invalid padding"}
	}
	last := len(body) - 1
	return &Error{fmt.Sprintf("Invalid last symbol %d, offset %d.", rest[last], done+last)}
}

func invalidSymbol(rest []byte, done, i int) error {
	return &Error{fmt.Sprintf("Invalid symbol %d, offset %d.", rest[i], done+i)}
}

func inAlphabet(c byte) bool {
	return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '+' || c == '/'
}
