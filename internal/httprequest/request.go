package httprequest

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Request is an HTTP request as a peer describes it, unchecked.
type Request struct {
	Method  string // sent as it is
	URL     string // http or https, as in a browser's address bar
	Headers []Header
	Body    []byte // must not change while the request is served

	// FollowRedirects returns the response after up to 10 redirects. Without it the first
	// response is the result.
	FollowRedirects bool
	// Redirected is called before each further request, which is not made if it returns an
	// error.
	Redirected func(method, url string) error
}

// Header is one line of a header.
type Header struct {
	Name  string
	Value string

	// ValueEnvVar names a variable of this process's environment, whose value is sent
	// after Value. nil means none. It is for requests only.
	ValueEnvVar *string
}

// InvalidError reports that a request cannot be sent as described.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

func invalid(format string, args ...any) error {
	return &InvalidError{fmt.Sprintf(format, args...)}
}

// build checks the request and converts it to one of net/http.
func (r *Request) build() (*http.Request, error) {
	if !isToken(r.Method) {
		return nil, invalid("the method is not an HTTP method")
	}
	u, err := parseURL(r.URL, nil)
	if scheme, ok := err.(*schemeError); ok {
		return nil, invalid("the URL has the scheme %s; http and https are supported", scheme.scheme)
	}
	if err != nil {
		return nil, invalid("the URL is invalid: %s", err)
	}
	out := &http.Request{
		Method: r.Method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": nil}, // keeps net/http from sending its own
	}
	for _, h := range r.Headers {
		if err := r.add(out, h); err != nil {
			return nil, err
		}
	}
	setUnlessGiven(out.Header, "accept", "*/*")
	if u.User != nil {
		setUnlessGiven(out.Header, "authorization", basic(u.User))
		u.User = nil
	}
	if r.Method == http.MethodConnect {
		u.Path, u.RawPath = "", "" // the target is the host alone
	}
	setBody(out, r.Body)
	return out, nil
}

// add adds one line of the header, with its name in lower case. net/http writes the names in
// the map unchanged, and looks up its own headers in canonical form.
func (r *Request) add(out *http.Request, h Header) error {
	if !isToken(h.Name) {
		return invalid("the name of a header is not an HTTP header name")
	}
	value := h.Value
	if h.ValueEnvVar != nil {
		secret, ok := os.LookupEnv(*h.ValueEnvVar)
		switch {
		case !ok:
			return invalid("the header %s takes its value from the environment variable %s, which the server does not have", shorten(h.Name), shorten(*h.ValueEnvVar))
		case secret == "":
			return invalid("the header %s takes its value from the environment variable %s, which is empty", shorten(h.Name), shorten(*h.ValueEnvVar))
		}
		value += secret
	}
	if !isFieldValue(value) {
		return invalid("the value of the header %s has control characters", shorten(h.Name))
	}
	switch name := strings.ToLower(h.Name); name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		// These belong to the connection, which is not the client's.
	case "content-length":
		if n, err := strconv.Atoi(value); err != nil || n != len(r.Body) {
			return invalid("the header %s contradicts the body of %d bytes; leave the header out", h.Name, len(r.Body))
		}
	case "host":
		u, err := url.Parse("http://" + value)
		switch {
		case err != nil || u.Host != value || strings.ContainsAny(value, `"<>`):
			return invalid("the value of the header %s is not a host", h.Name)
		case out.Host != "":
			return invalid("the header %s is there twice", h.Name)
		}
		out.Host = value
	default:
		out.Header[name] = append(out.Header[name], value)
	}
	return nil
}

func setUnlessGiven(header http.Header, name, value string) {
	if header[name] == nil {
		header[name] = []string{value}
	}
}

// setBody sets the body of a request, which may be empty.
func setBody(out *http.Request, body []byte) {
	out.Body, out.GetBody, out.ContentLength = nil, nil, int64(len(body))
	if len(body) == 0 {
		return
	}
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	out.Body, _ = out.GetBody()
}

// basic returns the value of an authorization header.
func basic(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// isToken reports whether s is a token of RFC 9110, which methods and header names must
// be.
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isLetter(c) && !isDigit(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// isFieldValue reports whether s may be the value of a header: it has no control
// characters except tabs.
func isFieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// shorten bounds a string of a peer that an error includes.
func shorten(s string) string {
	const most = 1 << 10
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

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

// BodyError reports that a body is incomplete.
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

// TooLargeError reports that a body is larger than the reader's limit.
type TooLargeError struct {
	Size  int64 // its size, or less
	Limit int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("body of at least %d bytes exceeds the limit of %d bytes", e.Size, e.Limit)
}

// ReadBody reads the body to its end. A body above limit bytes is a *TooLargeError.
// ReadBody calls grow before its memory grows by that many bytes. It does not return the
// memory if it fails.
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
