//go:build unix

package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/coder/websocket"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transporttest"
	"execserver/transport"
)

func TestMain(m *testing.M) { testkit.VerifyMain(testkit.Ledger(m)) }

type far = transporttest.Far

var kinds = []transporttest.Kind{
	{Name: "stdio", Connect: connectStdio},
	{Name: "unix", Connect: connectUnix},
	{Name: "websocket", Connect: func(t testing.TB, limit int64) (transport.Conn, far) { return connectWebSocket(t, limit, false) }, Blank: true},
	{Name: "websocket over TLS", Connect: func(t testing.TB, limit int64) (transport.Conn, far) { return connectWebSocket(t, limit, true) }, Blank: true},
	{Name: "memory", Connect: connectMemory, Blank: true},
	{Name: "dialed unix", Connect: dialUnix},
	{Name: "dialed websocket", Connect: func(t testing.TB, limit int64) (transport.Conn, far) { return dialWebSocket(t, limit, false) }, Blank: true},
	{Name: "dialed websocket over TLS", Connect: func(t testing.TB, limit int64) (transport.Conn, far) { return dialWebSocket(t, limit, true) }, Blank: true},
}

// TestConformance runs the tests of every transport over each of them.
func TestConformance(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			transporttest.Run(t, k)
		})
	}
}

// farLines is the far end of lines.
type farLines struct {
	r *bufio.Reader
	w io.WriteCloser
	c io.Closer
}

func (f *farLines) Send(msg []byte) error {
	_, err := f.w.Write(append(bytes.Clone(msg), '\n'))
	return err
}

func (f *farLines) Receive() ([]byte, error) {
	line, err := f.r.ReadBytes('\n')
	return bytes.TrimSuffix(line, []byte{'\n'}), err
}

func (f *farLines) Close() { _, _ = f.w.Close(), f.c.Close() }

func connectStdio(t testing.TB, limit int64) (transport.Conn, far) {
	in, toNear, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromNear, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stop := func() error { return errors.Join(in.Close(), out.Close()) }
	return transporttest.Ends(t, transport.NewLines("stdio", in, out, stop, limit), &farLines{bufio.NewReader(fromNear), toNear, fromNear})
}

func connectUnix(t testing.TB, limit int64) (transport.Conn, far) {
	path := filepath.Join(testkit.SocketDir(t), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.Ends(t, transport.NewUnix(accepted, limit), &farLines{bufio.NewReader(conn), conn, conn})
}

func connectMemory(t testing.TB, limit int64) (transport.Conn, far) {
	client, server := transport.Pipe(limit)
	return transporttest.Ends(t, server, farMemory{client})
}

type farMemory struct{ conn transport.Conn }

func (f farMemory) Send(msg []byte) error    { return f.conn.Write(msg) }
func (f farMemory) Receive() ([]byte, error) { return f.conn.Read(nil) }
func (f farMemory) Close()                   { _ = f.conn.Close(transport.Reason{}) }

// farWebSocket is an independent implementation of WebSocket.
type farWebSocket struct{ conn *websocket.Conn }

func (f farWebSocket) Send(msg []byte) error {
	return f.conn.Write(context.Background(), websocket.MessageText, msg)
}

func (f farWebSocket) Receive() ([]byte, error) {
	kind, msg, err := f.conn.Read(context.Background())
	if err == nil && kind != websocket.MessageText {
		return nil, errors.New("not a text message")
	}
	return msg, err
}

func (f farWebSocket) Close() { _ = f.conn.Close(websocket.StatusNormalClosure, "bye") }

func connectWebSocket(t testing.TB, limit int64, secure bool) (transport.Conn, far) {
	near, conn := acceptWebSocket(t, limit, secure, func(url string, client *http.Client) (*websocket.Conn, error) {
		conn, _, err := websocket.Dial(context.Background(), url, &websocket.DialOptions{HTTPClient: client})
		return conn, err
	})
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return transporttest.Ends(t, near, farWebSocket{conn})
}

// acceptWebSocket serves one upgrade, which dial asks for.
func acceptWebSocket[T any](t testing.TB, limit int64, secure bool, dial func(url string, client *http.Client) (T, error)) (transport.Pinger, T) {
	type result struct {
		conn transport.Conn
		err  error
	}
	accepted := make(chan result, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status, text := transport.CheckUpgrade(r); status != 0 {
			accepted <- result{nil, errors.New(text)}
			http.Error(w, text, status)
			return
		}
		conn, err := transport.Upgrade(w, r, limit)
		accepted <- result{conn, err}
	}))
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	defer server.Close()
	client := server.Client()
	if tr := client.Transport.(*http.Transport); secure {
		tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	conn, err := dial(server.URL, client)
	if err != nil {
		t.Fatal(err)
	}
	near := <-accepted
	if near.err != nil {
		t.Fatal(near.err)
	}
	return near.conn.(transport.Pinger), conn
}
