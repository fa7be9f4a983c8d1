//go:build unix

package transport_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transporttest"
	"execserver/transport"
)

func dialUnix(t testing.TB, limit int64) (transport.Conn, far) {
	path := filepath.Join(testkit.SocketDir(t), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := transport.Dial(context.Background(), "unix://"+path, &transport.DialOptions{MaxMessageBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.Ends(t, near, &farLines{bufio.NewReader(conn), conn, conn})
}

// dialWebSocket dials a server of an independent implementation.
func dialWebSocket(t testing.TB, limit int64, secure bool) (transport.Conn, far) {
	accepted := make(chan *websocket.Conn, 1)
	done := make(chan struct{})
	url, config := serveUpgrades(t, secure, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
		<-done
	})
	t.Cleanup(func() { close(done) })
	// The connection outlives the context that it was dialed with.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	near, err := transport.Dial(ctx, url, &transport.DialOptions{TLS: config, MaxMessageBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	conn := <-accepted
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return transporttest.Ends(t, near, farWebSocket{conn})
}

// serveUpgrades serves HTTP and returns the URL in the form of WebSocket, and
// what a client needs to trust it.
func serveUpgrades(t testing.TB, secure bool, handler http.HandlerFunc) (url string, config *tls.Config) {
	server := httptest.NewUnstartedServer(handler)
	if secure {
		server.StartTLS()
		config = &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http"), config
}

func TestDialSendsWhatTheURLSays(t *testing.T) {
	got := make(chan *http.Request, 1)
	url, _ := serveUpgrades(t, false, func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.WriteHeader(http.StatusTeapot)
	})
	header := http.Header{"Authorization": {"Bearer abc"}}
	_, err := transport.Dial(context.Background(), url+"/some/path?token=a%20b", &transport.DialOptions{Header: header})
	if refused, ok := errors.AsType[*transport.RefusedError](err); !ok || refused.Status != http.StatusTeapot {
		t.Errorf("error %v", err)
	}
	r := <-got
	if r.URL.String() != "/some/path?token=a%20b" || r.Header.Get("Authorization") != "Bearer abc" {
		t.Errorf("request for %s with %v", r.URL, r.Header)
	}
	for _, name := range []string{"Origin", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"} {
		if _, ok := r.Header[http.CanonicalHeaderKey(name)]; ok {
			t.Errorf("the request has a header %s", name)
		}
	}
	if header.Get("Upgrade") != "" {
		t.Error("Dial changed the caller's header")
	}
}

func TestDialIsRefused(t *testing.T) {
	reply := func(header string, value string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n" +
				header + ": " + value + "\r\n\r\n"))
		}
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"status and text", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "missing websocket bearer token", http.StatusUnauthorized)
		}, "status 401 Unauthorized: missing websocket bearer token"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "status 302"},
		{"endless text", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			for range 1000 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "status 502"},
		{"wrong key", reply("Sec-WebSocket-Accept", "abc"), "does not answer our key"},
		{"other protocol", reply("Upgrade", "h2c"), "does not answer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			url, _ := serveUpgrades(t, false, test.handler)
			_, err := transport.Dial(context.Background(), url, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 2000 {
				t.Errorf("error %.2000v, want one with %q", err, test.want)
			}
		})
	}
}

func TestDialFails(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := "ws://" + listener.Addr().String()
	defer listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := transport.Dial(ctx, silent, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that says nothing: %v", err)
	}
	nobody := "ws://" + testkit.FreeAddress(t)
	for url, want := range map[string]error{nobody: syscall.ECONNREFUSED, "unix:///nowhere/s": syscall.ENOENT} {
		if _, err := transport.Dial(context.Background(), url, nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", url, err, want)
		}
	}
	for _, url := range []string{"", "http://127.0.0.1", "127.0.0.1:80", "ws://a b"} {
		if _, err := transport.Dial(context.Background(), url, nil); err == nil {
			t.Errorf("%q was dialed", url)
		}
	}
}

// TestDialIsGivenUp ends the context in the moment in which the connection is made. Nothing of
// it is left, at the server or here.
func TestDialIsGivenUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, scheme := range []string{"ws", "wss"} {
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(string, string, error) {
			cancel()
			<-returned
		}})
		if _, err := transport.Dial(ctx, scheme+"://"+l.Addr().String(), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", scheme, err)
		}
		close(returned)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, "the end of the connection", func() { _, _ = io.Copy(io.Discard, conn) })
		_ = conn.Close()
	}
}

// TestDialAServerThatSpeaksFirst checks that the error has what such a server says, such as
// one for SSH, although that is there before the request.
func TestDialAServerThatSpeaksFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spoken := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.9\r\n")
		close(spoken)
		_, _ = io.Copy(io.Discard, conn)
	}()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { <-spoken }, // comes before the request
	})
	conn, err := transport.Dial(ctx, "ws://"+l.Addr().String(), nil)
	if err == nil {
		_ = conn.Close(transport.Reason{})
	}
	if err == nil || !strings.Contains(err.Error(), `"SSH-2.0-OpenSSH_9.9"`) {
		t.Errorf("the error does not say what the server said: %v", err)
	}
	<-ended
}

// A server must not mask, and what it sends must be whole frames.
func TestViolationsOfAServer(t *testing.T) {
	for name, frame := range map[string][]byte{
		"masked":        {0x81, 0x81, 1, 2, 3, 4, 'x'},
		"reserved bits": {0xF1, 1, 'x'},
	} {
		t.Run(name, func(t *testing.T) {
			near, end := dialWebSocketRaw(t)
			if _, err := end.Write(frame); err != nil {
				t.Fatal(err)
			}
			_ = end.SetReadDeadline(time.Now().Add(testkit.Patience))
			go func() {
				header := make([]byte, 2)
				_, _ = end.Read(header)
				_ = end.Close()
			}()
			if _, err := near.Read(nil); err == nil || !strings.Contains(err.Error(), "websocket protocol error") {
				t.Errorf("Read: %v", err)
			}
		})
	}
}

// dialWebSocketRaw dials a server whose frames the test writes itself.
func dialWebSocketRaw(t *testing.T) (transport.Conn, net.Conn) {
	accepted := make(chan net.Conn, 1)
	url, _ := serveUpgrades(t, false, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
		accepted <- conn
	})
	near, err := transport.Dial(context.Background(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	end := <-accepted
	t.Cleanup(func() {
		_ = near.Close(transport.Reason{})
		_ = end.Close()
	})
	return near, end
}
