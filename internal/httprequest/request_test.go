package httprequest_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"execserver/internal/httprequest"
)

// FuzzRequest sends every accepted request and reads it with net/http: no description can
// smuggle anything into the request.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "X-A", "b", "")
	f.Add("pOsT", "content-length", "2", "hi")
	f.Add("PUT", "Content-Length", "+2", "hi")
	f.Add("GET", "host", "h:81", "x")
	f.Add("GET", "Host", "a b", "")
	f.Add("GET", "host", "", "")
	f.Add("G ET", "a:", "b", "")
	f.Add("GET", "a", "b\r\nc: d", "")
	f.Add("GET", "transfer-encoding", "chunked", "x")
	f.Add("GET", "Connection", "close, a", "x")
	f.Add("CONNECT", "user-agent", " \tx ", "")
	f.Add("HEAD", "Trailer", "\xff\u00e9", "GET / HTTP/1.1\r\n\r\n")
	f.Add("GET", "expect", "100-continue", "x")
	token := regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	control := regexp.MustCompile(`[\x00-\x08\x0a-\x1f\x7f]`)
	unsent := map[string]bool{"connection": true, "keep-alive": true, "proxy-connection": true, "transfer-encoding": true, "upgrade": true}
	f.Fuzz(func(t *testing.T, method, name, value, body string) {
		out, err := httprequest.Build(&httprequest.Request{
			Method: method, URL: "http://target:80/path?query", Body: []byte(body),
			Headers: []httprequest.Header{{Name: name, Value: value}},
		})
		key := strings.ToLower(name)
		if err != nil {
			if _, ok := errors.AsType[*httprequest.InvalidError](err); !ok || len(err.Error()) > 4<<10 {
				t.Fatalf("error %#v", err)
			}
			if token.MatchString(method) && token.MatchString(name) && !control.MatchString(value) && key != "host" && key != "content-length" {
				t.Fatalf("%q, %q: %q was refused: %v", method, name, value, err)
			}
			return
		}
		if !token.MatchString(method) || !token.MatchString(name) || control.MatchString(value) {
			t.Fatalf("%q, %q: %q was accepted", method, name, value)
		}
		if key == "host" && strings.ContainsFunc(value, func(r rune) bool { return r > 0x7e }) {
			return // net/http may translate it
		}
		var wire bytes.Buffer
		if err := out.Write(&wire); err != nil {
			t.Fatalf("%q, %q: %q: %v", method, name, value, err)
		}
		text := wire.String()
		r := bufio.NewReader(&wire)
		in, err := http.ReadRequest(r)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		got, err := io.ReadAll(in.Body)
		if rest, _ := io.ReadAll(r); err != nil || string(got) != body || len(rest) > 0 {
			t.Fatalf("%q: body %q, %v, then %q", text, got, err, rest)
		}
		target, host := "/path?query", "target"
		if method == "CONNECT" {
			target = "target"
		}
		want := strings.Trim(value, " \t")
		if key == "host" && want != "" {
			host = want
			if method == "CONNECT" {
				target = want
			}
		}
		if in.Method != method || in.RequestURI != target || in.Host != host {
			t.Fatalf("%q: %s %s for %s", text, in.Method, in.RequestURI, in.Host)
		}
		for given, values := range in.Header {
			switch given := strings.ToLower(given); {
			case given == key && !unsent[key] && key != "host" && key != "content-length":
				if len(values) != 1 || values[0] != want {
					t.Fatalf("%q: %s: %q, want %q", text, given, values, want)
				}
			case given == "accept" && strings.Join(values, ",") == "*/*", given == "content-length":
			default:
				t.Fatalf("%q: header %s", text, given)
			}
		}
		if in.Header.Get(name) == "" && want != "" && !unsent[key] && key != "host" && key != "content-length" {
			t.Fatalf("%q: %s is missing", text, name)
		}
	})
}
