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
	done := encodeFast(dst[from:], src)
	stdbase64.StdEncoding.Encode(dst[from+done/3*4:], src[done:])
	return dst
}

// AppendDecode appends the decoding of src to dst and returns the extended
// buffer. On error it returns dst unchanged and an *Error. It keeps no
// reference to src.
func AppendDecode(dst, src []byte) ([]byte, error) {
	n := stdbase64.StdEncoding.DecodedLen(len(src))
	from := len(dst)
	out := slices.Grow(dst, n)[:from+n]
	done := decodeFast(out[from:], src)
	rest := src[done:]
	for _, c := range []byte("\r\n") { // faster than IndexAny by far
		if bytes.IndexByte(rest, c) >= 0 {
			return dst, invalidSymbol(src, done+bytes.IndexAny(rest, "\r\n"))
		}
	}
	from += done / 4 * 3
	n, err := strict.Decode(out[from:], rest)
	if err == nil {
		return out[:from+n], nil
	}
	return dst, explain(src, err)
}

// explain turns the library's offset into the texts of the wire.
func explain(src []byte, err error) error {
	var corrupt stdbase64.CorruptInputError
	if !errors.As(err, &corrupt) {
		return &Error{err.Error()}
	}
	for i, c := range src {
		if !inAlphabet(c) && c != '=' {
			return invalidSymbol(src, i)
		}
	}
	body := bytes.TrimRight(src, "=")
	if i := bytes.IndexByte(body, '='); i >= 0 {
		return invalidSymbol(src, i)
	}
	padding := len(src) - len(body)
	if len(body)%4 == 1 || padding > 2 || len(src)%4 != 0 {
		return &Error{"Invalid padding"}
	}
	last := len(body) - 1
	return &Error{fmt.Sprintf("Invalid last symbol %d, offset %d.", src[last], last)}
}

func invalidSymbol(src []byte, i int) error {
	return &Error{fmt.Sprintf("Invalid symbol %d, offset %d.", src[i], i)}
}

func inAlphabet(c byte) bool {
	return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '+' || c == '/'
}
