package httprequest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
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

// InvalidError says that a request cannot be sent as it is described.
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

// add adds one line of the header. Names are in lower case. net/http writes names as they
// are in the map, and looks for its own in other spellings.
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

// shorten bounds the text of a peer that an error repeats.
func shorten(s string) string {
	const most = 1 << 10
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
