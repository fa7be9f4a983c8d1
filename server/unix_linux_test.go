package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/auth"
	"execserver/internal/testkit"
	"execserver/server"
)

// serveUnix serves on a unix socket. dial connects to it.
func serveUnix(t *testing.T, opts *server.Options) (srv *server.Server, dial func() *net.UnixConn) {
	t.Helper()
	srv = server.New(opts)
	return srv, serveUnixBy(t, srv)
}

// serveUnixBy is serveUnix with a server.
func serveUnixBy(t *testing.T, srv *server.Server) (dial func() *net.UnixConn) {
	t.Helper()
	path := filepath.Join(testkit.SocketDir(t), "s")
	l, err := auth.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := srv.ServeUnix(l); err != server.ErrClosed {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		testkit.Shutdown(t, srv)
		<-served
	})
	return func() *net.UnixConn {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		t.Cleanup(func() { _ = conn.Close() })
		return conn.(*net.UnixConn)
	}
}

// TestUnixSpeaks sends what different clients begin with.
func TestUnixSpeaks(t *testing.T) {
	t.Parallel()
	metrics := func(*server.Server) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "some metrics") })
	}
	_, dial := serveUnix(t, &server.Options{Metrics: metrics, AllowHosts: []string{"box.example"}}) // no Auth
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
	const initialize = `{"id":1,"method":"initialize","params":{"clientName":"test"}}` + "\n"
	const malformed = `{"error":{"code":-32600,"message":"malformed message: invalid JSON`
	for _, row := range []struct{ sent, want, never string }{
		{sent: "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 200 OK\r\n"},
		{sent: "HEAD /readyz HTTP/1.1\r\nHost: 127.0.0.1:8765\r\n\r\n", want: "HTTP/1.1 200 OK\r\n"},
		{sent: "GET /metrics HTTP/1.1\r\nHost: box.example\r\n\r\n", want: "some metrics"},
		{sent: "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 405 "},
		{sent: "PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 405 "},
		{sent: "DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 405 "},
		{sent: "OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 405 "},
		{sent: "TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 405 "},
		{sent: "CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n", want: "HTTP/1.1 404 "},
		{sent: "GET / HTTP/1.1\r\nHost: localhost\r\n" + upgrade + "\r\n", want: "HTTP/1.1 101 "},
		{sent: "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", want: "HTTP/1.1 400 "},
		{sent: "HELLO\r\n\r\n", want: "HTTP/1.1 400 "},
		// A page whose name now resolves to the loopback of a machine that forwards a port.
		{sent: "GET / HTTP/1.1\r\nHost: evil.example\r\n" + upgrade + "\r\n", want: "HTTP/1.1 403 "},
		{sent: "GET / HTTP/1.0\r\n" + upgrade + "\r\n", want: "HTTP/1.0 403 "},
		{sent: "GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n" + upgrade + "\r\n", want: "HTTP/1.1 403 "},
		{sent: "GET /metrics HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n", want: "HTTP/1.1 403 ", never: "some metrics"},
		{sent: "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 62\r\n\r\n" + initialize, want: "HTTP/1.1 405 ", never: "sessionId"},
		{sent: "abc / HTTP/1.1\r\nHost: evil.example\r\n\r\n" + initialize, want: "this is a request of HTTP", never: "sessionId"},
		{sent: initialize, want: `"sessionId":`},
		{sent: "\r\n \n" + initialize, want: `"sessionId":`},
		{sent: "not json\n" + initialize, want: malformed},
		{sent: "XYZ\n", want: malformed},
		{sent: "\x16\x03\x01\n", want: malformed},
	} {
		t.Run(fmt.Sprintf("%.20q", row.sent), func(t *testing.T) {
			conn := dial()
			if _, err := io.WriteString(conn, row.sent); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(row.want, "HTTP/1.1 101") {
				_ = conn.CloseWrite()
			} else if buf := make([]byte, len(row.want)); true {
				if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != row.want {
					t.Errorf("the answer is %q, %v", buf, err)
				}
				return
			}
			answer, err := io.ReadAll(conn)
			if !strings.Contains(string(answer), row.want) || row.never != "" && strings.Contains(string(answer), row.never) {
				t.Errorf("the answer is %q, %v, want %q", answer, err, row.want)
			}
		})
	}
}

// TestUnixDeadline expires connections: before their first byte, before the rest of what they send
// first, and before initialize over WebSocket. A client that sends its first byte late has no more
// time than others.
func TestUnixDeadline(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"nothing": "", "part of a line": `{"id"`, "a line": "{}\n", "part of a request": "GET / HT"} {
		t.Run(name, func(t *testing.T) {
			srv := server.New(nil)
			deadlines := server.HandshakeDeadlines(srv)
			dial := serveUnixBy(t, srv)
			conn := dial()
			expire := await1(t, deadlines)
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Fatal(err)
			}
			if sent == "{}\n" { // an answer shows that the line was served
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			expire()
			if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection ends with %v", err)
			}
			select {
			case <-deadlines:
				t.Error("another deadline has begun")
			default:
			}
		})
	}
}

func await1[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(testkit.Patience):
		t.Fatal("nothing happens")
	}
	return v
}

// TestUnixShutdown shuts a server down while connections have not sent their first byte, and
// others half a request.
func TestUnixShutdown(t *testing.T) {
	t.Parallel()
	srv, dial := serveUnix(t, nil)
	var conns []*net.UnixConn
	for i := range 20 {
		conn := dial()
		if i%2 == 1 {
			if _, err := io.WriteString(conn, "GET / H"); err != nil {
				t.Fatal(err)
			}
		}
		conns = append(conns, conn)
	}
	testkit.Shutdown(t, srv)
	for _, conn := range conns {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
	}
}

// TestSystemUnixHTTPRefused has a user connect who may not, over HTTP.
func TestSystemUnixHTTPRefused(t *testing.T) {
	testkit.System(t, testkit.Root)
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	at := webSocketOnUnix{listenUnix(t, srv).(unixServer).path}
	if _, err := at.Connect(); err == nil || !strings.Contains(err.Error(), "the user 61234 may not connect") {
		t.Errorf("the error is %v", err)
	}
}

// TestUnixPage signs in to the page over a unix socket, as through a forwarded port.
func TestUnixPage(t *testing.T) {
	t.Parallel()
	opts := pageOf()
	_, dial := serveUnix(t, &opts)
	lines := dial()
	if _, err := io.WriteString(lines, `{"id":1,"method":"initialize","params":{"clientName":"test"}}`+"\n"+`{"method":"initialized"}`+"\n"+
		`{"id":2,"method":"web/link"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	_ = lines.CloseWrite()
	answers, err := io.ReadAll(lines)
	_, rest, found := strings.Cut(string(answers), `"path":"/web/#`)
	code, _, _ := strings.Cut(rest, `"`)
	if err != nil || !found {
		t.Fatalf("no link in %q, %v", answers, err)
	}
	b := newBrowser(t, "ws://localhost:8765")
	b.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil }}}
	b.origin = "http://evil.example"
	if status, text, _ := b.do(http.MethodPost, "/web/sign-in", "", `{"code":"`+code+`"}`); status != http.StatusForbidden {
		t.Errorf("from another page: %d %s", status, text)
	}
	b.origin = b.base
	b.secret("/web/sign-in", "", `{"code":"`+code+`"}`, "key")
}
