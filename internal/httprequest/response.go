package httprequest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// Response is the response to a request. Headers are ordered by name, in lower case;
// lines of one name are in their order of arrival. Body is as the server sent it; its
// errors are *BodyError.
type Response struct {
	Status  int
	Headers []Header
	Body    io.ReadCloser

	length int64 // of the body, -1 when unknown
}

func newResponse(ctx context.Context, r *http.Response) *Response {
	response := &Response{Status: r.StatusCode, Body: &body{ctx, r.Body}, length: r.ContentLength}
	if r.Request.Method == http.MethodHead || r.StatusCode == http.StatusNotModified {
		response.length = 0 // the header describes another response
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		// What follows is not a body.
		_ = r.Body.Close()
		response.Body, response.length = http.NoBody, 0
	}
	header := r.Header
	if len(r.TransferEncoding) > 0 { // net/http removes it, and also the next one
		header["Transfer-Encoding"] = r.TransferEncoding
	}
	if len(r.Trailer) > 0 {
		header["Trailer"] = slices.Sorted(maps.Keys(r.Trailer))
	}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			response.Headers = append(response.Headers, Header{Name: strings.ToLower(name), Value: asText(value)})
		}
	}
	return response
}

// asText returns the value of a header as text: as UTF-8 if it is valid, otherwise as ISO
// 8859-1.
func asText(value string) string {
	if utf8.ValidString(value) {
		return value
	}
	runes := make([]rune, len(value))
	for i := range len(value) {
		runes[i] = rune(value[i])
	}
	return string(runes)
}

// BodyError says that a body is incomplete.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "the body is incomplete: " + shorten(e.Err.Error()) }
func (e *BodyError) Unwrap() error { return e.Err }

// body adds the cause to the errors of a response's body.
type body struct {
	ctx context.Context
	io.ReadCloser
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil || err == io.EOF:
	case b.ctx.Err() != nil:
		err = &BodyError{context.Cause(b.ctx)}
	default:
		err = &BodyError{err}
	}
	return n, err
}

// TooLargeError says that a body is larger than the reader's limit.
type TooLargeError struct {
	Size  int64 // its size, or less
	Limit int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("body of at least %d bytes exceeds the limit of %d bytes", e.Size, e.Limit)
}

// ReadBody reads the body to its end. A body above limit bytes is a *TooLargeError.
// ReadBody calls grow before its memory grows by that many bytes. It uses the granted
// memory even if it fails.
func (r *Response) ReadBody(limit int64, grow func(bytes int64) error) ([]byte, error) {
	if r.length > limit {
		return nil, &TooLargeError{Size: r.length, Limit: limit}
	}
	var data []byte
	for {
		if len(data) == cap(data) {
			room := min(max(2*int64(cap(data)), 4<<10), limit+1)
			if err := grow(room - int64(cap(data))); err != nil {
				return nil, err
			}
			data = append(make([]byte, 0, room), data...)
		}
		n, err := r.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > limit:
			return nil, &TooLargeError{Size: int64(len(data)), Limit: limit}
		case err == io.EOF:
			return data, nil
		case err != nil:
			return nil, err
		}
	}
}
