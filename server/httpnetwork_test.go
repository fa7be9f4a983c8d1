//go:build unix

package server_test

import (
	"bufio"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/protocol"
)

// requests are what an HTTP server has been asked, and by which version.
type requests struct {
	mu   sync.Mutex
	seen []*http.Request
}

func (r *requests) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, request)
	w.Header().Set("Content-Type", "text/plain")
	w.Header()["Date"] = nil
	_, _ = w.Write(append([]byte("got "), body...))
}

func (r *requests) last(t *testing.T) *http.Request {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 {
		t.Fatal("nobody has asked")
	}
	return r.seen[len(r.seen)-1]
}

// farTLS starts an HTTPS server and returns its URL and a file with its
// certificate.
func farTLS(t *testing.T, h http.Handler, http2 bool) (url, certificate string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that do not trust it
	s.StartTLS()
	t.Cleanup(s.Close)
	certificate = filepath.Join(t.TempDir(), "certificate.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(certificate, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, certificate
}

func TestHTTPCertificates(t *testing.T) {
	url, certificate := farTLS(t, new(requests), false)
	srv := serveWebSocket(t, nil)
	for _, test := range []struct{ name, codex, ssl, want string }{
		{"none", "", "", "http/request failed: request to " + url + "/: tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		{"CODEX_CA_CERTIFICATE", certificate, "", ""},
		{"SSL_CERT_FILE", "", certificate, ""},
		{"missing", "", "/does/not/exist", "http/request failed: read the CA certificates that SSL_CERT_FILE names: open /does/not/exist: no such file or directory"},
		{"empty", os.DevNull, certificate, "http/request failed: read the CA certificates that CODEX_CA_CERTIFICATE names: no certificate in /dev/null; it must be a PEM file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CODEX_CA_CERTIFICATE", test.codex)
			t.Setenv("SSL_CERT_FILE", test.ssl)
			c := newCaller(t, srv, "")
			r := c.call("http/request", httpParams(url+"/", nil))
			if test.want == "" && r.Error != nil {
				t.Error(r.Error)
			}
			if test.want != "" && (r.Error == nil || r.Error.Message != test.want || r.Error.Code != protocol.CodeInternal) {
				t.Errorf("%s: %v", r.Result, r.Error)
			}
		})
	}
}

// TestHTTP2 is spoken where the server knows it; nothing else changes.
func TestHTTP2(t *testing.T) {
	var r requests
	url, certificate := farTLS(t, &r, true)
	t.Setenv("CODEX_CA_CERTIFICATE", certificate)
	c := newCaller(t, serveWebSocket(t, nil), "")
	got := c.http(url+"/x?y", params{"method": "POST", "bodyBase64": "aGVsbG8=", "headers": []params{
		{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "é"}, {"name": "connection", "value": "close"}, {"name": "upgrade", "value": "x"},
	}})
	want := protocol.HTTPResponse{Status: 200, Body: []byte("got hello"), Headers: []protocol.HTTPHeader{
		{Name: "content-length", Value: "9"}, {Name: "content-type", Value: "text/plain"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	request := r.last(t)
	header := http.Header{"X-A": {"1", "é"}, "Accept": {"*/*"}, "Content-Length": {"5"}}
	if diff := cmp.Diff(header, request.Header); diff != "" || request.Proto != "HTTP/2.0" || request.RequestURI != "/x?y" {
		t.Errorf("%s %s\n%s", request.Proto, request.RequestURI, diff)
	}
	c.http(url, stream("s"))
	if data, failure := c.body("s"); string(data) != "got " || failure != "" {
		t.Errorf("%q, %s", data, failure)
	}
	if got := c.http(url, params{"method": "HEAD"}); got.Status != 200 || len(got.Body) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestHTTP2ReaderThatStops leaves what is not read with the server.
func TestHTTP2ReaderThatStops(t *testing.T) {
	s := new(source)
	url, certificate := farTLS(t, http.HandlerFunc(s.serve), true)
	s.url = url
	t.Setenv("CODEX_CA_CERTIFICATE", certificate)
	c := newCaller(t, serveWebSocket(t, nil), "")
	mute(c, true)
	for _, id := range []string{"a", "b", "c", "d"} {
		c.send("http/request", httpParams(s.url+"/4000000", stream(id)))
	}
	if n := s.quiet(t); n > 8<<20 {
		t.Errorf("%d bytes were sent", n)
	}
	mute(c, false)
	for _, id := range []string{"a", "b", "c", "d"} {
		if data, failure := c.body(id); len(data) != 4_000_000 || failure != "" {
			t.Errorf("stream %s: %d bytes, %s", id, len(data), failure)
		}
	}
}

// TestHTTPProxy is asked for targets on loopback, too, and learns the target
// even when a host header says otherwise.
func TestHTTPProxy(t *testing.T) {
	var proxy, direct requests
	proxyURL := far(t, proxy.ServeHTTP)
	target := far(t, direct.ServeHTTP)
	t.Setenv("HTTP_PROXY", strings.Replace(proxyURL, "http://", "http://user:pw@", 1))
	c := newCaller(t, serveWebSocket(t, nil), "")
	c.http(target+"/x?y", params{"headers": []params{{"name": "a", "value": "b"}}})
	request := proxy.last(t)
	header := http.Header{"A": {"b"}, "Accept": {"*/*"}, "Proxy-Authorization": {"Basic dXNlcjpwdw=="}}
	if diff := cmp.Diff(header, request.Header); diff != "" || request.RequestURI != target+"/x?y" {
		t.Errorf("asked for %s\n%s", request.RequestURI, diff)
	}
	c.http(target+"/a%20b?", params{"headers": []params{{"name": "host", "value": "other"}}})
	if request := proxy.last(t); request.RequestURI != target+"/a%20b?" {
		t.Errorf("asked for %s", request.RequestURI)
	}
	if len(direct.seen) > 0 {
		t.Errorf("the target was asked %d times", len(direct.seen))
	}
}

// TestHTTPProxyTunnel reaches an HTTPS server through a proxy that learns
// nothing but its name.
func TestHTTPProxyTunnel(t *testing.T) {
	var r requests
	url, certificate := farTLS(t, &r, true)
	t.Setenv("SSL_CERT_FILE", certificate)
	connects := make(chan string, 10)
	t.Setenv("https_proxy", tunnel(t, connects))
	c := newCaller(t, serveWebSocket(t, nil), "")
	if got := c.http(url+"/x", params{"headers": []params{{"name": "authorization", "value": "secret"}}}); string(got.Body) != "got " {
		t.Errorf("got %q", got.Body)
	}
	host := strings.TrimPrefix(url, "https://")
	if got, want := await(t, "the proxy", connects), "CONNECT "+host+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n"; got != want {
		t.Errorf("the proxy was asked %q", got)
	}
	if r.last(t).Proto != "HTTP/2.0" {
		t.Error(r.last(t).Proto)
	}
}

// tunnel is a proxy that only knows CONNECT.
func tunnel(t *testing.T, connects chan<- string) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				head, r := "", bufio.NewReader(conn)
				for !strings.HasSuffix(head, "\r\n\r\n") {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					head += line
				}
				connects <- head
				target, err := net.Dial("tcp", strings.Fields(head)[1])
				if err != nil {
					t.Error(err)
					return
				}
				defer target.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
				// Between two sockets Copy would splice, by pipes that Go keeps for later copies.
				wg.Go(func() {
					_, _ = io.Copy(struct{ io.Writer }{conn}, target)
					_ = conn.Close()
				})
				_, _ = io.Copy(struct{ io.Writer }{target}, r)
			})
		}
	})
	return "http://" + l.Addr().String()
}

// TestHTTPRedirectElsewhere drops what is meant for one server only, and does
// not tell it where the request was; nor does it come back.
func TestHTTPRedirectElsewhere(t *testing.T) {
	var r requests
	plain := far(t, func(w http.ResponseWriter, request *http.Request) { r.ServeHTTP(w, request) })
	secure, certificate := farTLS(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		http.Redirect(w, request, plain+"/plain", http.StatusTemporaryRedirect)
	}), false)
	first := far(t, func(w http.ResponseWriter, request *http.Request) {
		switch request.URL.Path {
		case "/plain":
			w.Header().Set("Location", plain)
		case "/user":
			w.Header().Set("Location", strings.Replace("http://"+request.Host, "http://", "http://x:y@", 1)+"/hop")
		case "/hop":
			w.Header().Set("Location", "end")
		case "/secure":
			w.Header().Set("Location", secure)
		case "/back":
			w.Header().Set("Location", strings.Replace("http://"+request.Host, "127.0.0.1", "localhost", 1)+"/forth")
		case "/forth":
			w.Header().Set("Location", strings.Replace("http://"+request.Host, "localhost", "127.0.0.1", 1)+"/end")
		default:
			r.ServeHTTP(w, request)
			return
		}
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	t.Setenv("CODEX_CA_CERTIFICATE", certificate)
	c := newCaller(t, serveWebSocket(t, nil), "")
	headers := params{"method": "POST", "bodyBase64": "aGk=", "headers": []params{
		{"name": "authorization", "value": "x"},
		{"name": "cookie", "value": "x"},
		{"name": "proxy-authorization", "value": "x"},
		{"name": "content-type", "value": "text/plain"},
		{"name": "a", "value": "b"},
		{"name": "referer", "value": "mine"},
	}}
	kept := http.Header{"Accept": {"*/*"}, "A": {"b"}, "Content-Type": {"text/plain"}, "Content-Length": {"2"}}
	for path, referer := range map[string]string{
		"/plain":  first + "/",
		"/secure": "", // from https to http
		"/back":   strings.Replace(first, "127.0.0.1", "localhost", 1) + "/",
		"/user":   first + "/hop",
	} {
		if got := c.http(strings.Replace(first, "http://", "http://u:p@", 1)+path, headers); string(got.Body) != "got hi" {
			t.Errorf("%s: got %d %q", path, got.Status, got.Body)
		}
		want := kept.Clone()
		if path == "/user" { // it stays with the server
			want["Authorization"], want["Cookie"], want["Proxy-Authorization"] = []string{"x"}, []string{"x"}, []string{"x"}
		}
		if referer != "" {
			want.Set("Referer", referer)
		}
		if diff := cmp.Diff(want, r.last(t).Header); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

// TestHTTPRedirectCount follows ten.
func TestHTTPRedirectCount(t *testing.T) {
	url := far(t, func(w http.ResponseWriter, r *http.Request) {
		if n := len(r.URL.Path) - 1; n > 0 {
			http.Redirect(w, r, r.URL.Path[:n], http.StatusFound)
		}
	})
	c := newCaller(t, serveWebSocket(t, nil), "")
	if got := c.http(url+"/"+strings.Repeat("x", 10), nil); got.Status != 200 {
		t.Errorf("status %d", got.Status)
	}
	if err := c.httpError(url+"/"+strings.Repeat("x", 11), nil); err.Message != "http/request failed: too many redirects" {
		t.Error(err)
	}
}
