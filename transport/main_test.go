//go:build unix

package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
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
	"execserver/transport"
)

func TestMain(m *testing.M) { testkit.VerifyMain(testkit.Ledger(m)) }

// far is the peer of the Conn under test, made without the package where that
// is possible.
type far interface {
	send(msg []byte) error
	receive() ([]byte, error)
	close()
}

// kind is one of the transports.
type kind struct {
	name    string
	connect func(t testing.TB, limit int64) (transport.Conn, far)
	blank   bool // carries empty messages
}

var kinds = []kind{
	{"stdio", connectStdio, false},
	{"unix", connectUnix, false},
	{"websocket", func(t testing.TB, limit int64) (transport.Conn, far) { return connectWebSocket(t, limit, false) }, true},
	{"websocket over TLS", func(t testing.TB, limit int64) (transport.Conn, far) { return connectWebSocket(t, limit, true) }, true},
	{"memory", connectMemory, true},
	{"dialed unix", dialUnix, false},
	{"dialed websocket", func(t testing.TB, limit int64) (transport.Conn, far) { return dialWebSocket(t, limit, false) }, true},
	{"dialed websocket over TLS", func(t testing.TB, limit int64) (transport.Conn, far) { return dialWebSocket(t, limit, true) }, true},
	{"nats", connectNATS, true},
}

// each runs a test over every transport.
func each(t *testing.T, run func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { run(t, k) })
	}
}

// farLines is the far end of lines.
type farLines struct {
	r *bufio.Reader
	w io.WriteCloser
	c io.Closer
}

func (f *farLines) send(msg []byte) error {
	_, err := f.w.Write(append(bytes.Clone(msg), '\n'))
	return err
}

func (f *farLines) receive() ([]byte, error) {
	line, err := f.r.ReadBytes('\n')
	return bytes.TrimSuffix(line, []byte{'\n'}), err
}

func (f *farLines) close() { _, _ = f.w.Close(), f.c.Close() }

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
	return ends(t, transport.NewLines("stdio", in, out, stop, limit), &farLines{bufio.NewReader(fromNear), toNear, fromNear})
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
	return ends(t, transport.NewUnix(accepted, limit), &farLines{bufio.NewReader(conn), conn, conn})
}

func connectMemory(t testing.TB, limit int64) (transport.Conn, far) {
	client, server := transport.Pipe(limit)
	return ends(t, server, farMemory{client})
}

type farMemory struct{ conn transport.Conn }

func (f farMemory) send(msg []byte) error    { return f.conn.Write(msg) }
func (f farMemory) receive() ([]byte, error) { return f.conn.Read(nil) }
func (f farMemory) close()                   { _ = f.conn.Close(transport.Reason{}) }

// farWebSocket is an independent implementation of WebSocket.
type farWebSocket struct{ conn *websocket.Conn }

func (f farWebSocket) send(msg []byte) error {
	return f.conn.Write(context.Background(), websocket.MessageText, msg)
}

func (f farWebSocket) receive() ([]byte, error) {
	kind, msg, err := f.conn.Read(context.Background())
	if err == nil && kind != websocket.MessageText {
		return nil, errors.New("not a text message")
	}
	return msg, err
}

func (f farWebSocket) close() { _ = f.conn.Close(websocket.StatusNormalClosure, "bye") }

func connectWebSocket(t testing.TB, limit int64, secure bool) (transport.Conn, far) {
	near, conn := acceptWebSocket(t, limit, secure, func(url string, client *http.Client) (*websocket.Conn, error) {
		conn, _, err := websocket.Dial(context.Background(), url, &websocket.DialOptions{HTTPClient: client})
		return conn, err
	})
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return ends(t, near, farWebSocket{conn})
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

// ends sees to it that both ends of a connection are closed with the test.
func ends(t testing.TB, near transport.Conn, end far) (transport.Conn, far) {
	t.Cleanup(func() {
		_ = near.Close(transport.Reason{Code: transport.CodeNormal})
		end.close()
		for {
			if _, err := near.Read(nil); err != nil && !tooLarge(err) {
				return
			}
		}
	})
	return near, end
}

func tooLarge(err error) bool {
	_, ok := errors.AsType[*transport.TooLargeError](err)
	return ok
}

// message is a message of size bytes that no other index has; it is not blank
// and has no line ends.
func message(index, size int) []byte {
	b := make([]byte, size)
	var word [8]byte
	for i := range b {
		if i%8 == 0 {
			binary.BigEndian.PutUint64(word[:], uint64(index)*0x9E3779B97F4A7C15+uint64(i))
		}
		b[i] = 'A' + word[i%8]%50
	}
	return b
}
