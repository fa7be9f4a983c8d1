package server_test

import (
	"bufio"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/server"
)

// memoryListener accepts connections within the process that look like those of
// loopback.
type memoryListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return loopbackAddress }

var loopbackAddress = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4444}

type loopbackConn struct{ net.Conn }

func (loopbackConn) LocalAddr() net.Addr  { return loopbackAddress }
func (loopbackConn) RemoteAddr() net.Addr { return loopbackAddress }

// statusOf sends a request with some header lines and returns the status line of the
// answer.
func (l *memoryListener) statusOf(t testing.TB, header string) string {
	t.Helper()
	ours, theirs := net.Pipe()
	l.conns <- loopbackConn{theirs}
	_ = ours.SetDeadline(time.Now().Add(20 * time.Second))
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = io.WriteString(ours, "GET / HTTP/1.1\r\n"+header+"\r\n\r\n") })
	line, err := bufio.NewReader(ours).ReadString('\n')
	_ = ours.Close()
	writing.Wait()
	if err != nil && err != io.EOF {
		t.Fatalf("no answer to %q: %v", header, err)
	}
	return line
}

// goodUpgrade is what the server would let in, but for the token.
const goodUpgrade = "Host: localhost:4444\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="

// FuzzUpgradeRequest sends arbitrary headers. Nobody has a token, so who passes all other
// checks gets 401: then, as another reading of the header says, there is one Host, which
// means this machine wherever the name is looked up, no page has sent the request, and it
// asks for a WebSocket.
func FuzzUpgradeRequest(f *testing.F) {
	for _, header := range []string{
		goodUpgrade, strings.Replace(goodUpgrade, "localhost", "evil.example", 1), goodUpgrade + "\r\nHost: evil.example",
		goodUpgrade + "\r\nOrigin: https://evil.example", goodUpgrade + "\r\nOrigin:", goodUpgrade + "\nORIGIN: null", goodUpgrade + "\r\nOrigin : x",
		strings.Replace(goodUpgrade, "localhost", "[::1]", 1), strings.Replace(goodUpgrade, "localhost:4444", "127.9.9.9.", 1),
		strings.Replace(goodUpgrade, "localhost:4444", "localhost\r\n .evil.example", 1), goodUpgrade + "\r\nContent-Length: 5",
		goodUpgrade + "\r\nTransfer-Encoding: chunked", strings.Replace(goodUpgrade, "Upgrade: websocket", "Upgrade: h2c, websocket", 1),
		"Host: ", "Host: localhost", "\x00", ": x", goodUpgrade + "\r\nX-Forwarded-Host: evil.example", goodUpgrade + "\r\nAuthorization: Bearer x",
	} {
		f.Add(header)
	}
	srv := server.New(&server.Options{
		Auth: new(server.Authenticator), // lets nobody in
	})
	server.DelayRefusals(srv, 0)
	listener := &memoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
	go srv.ServeWebSocket(listener)
	f.Cleanup(func() { testkit.Shutdown(f, srv) })
	if status := listener.statusOf(f, goodUpgrade); !strings.Contains(status, " 401 ") {
		f.Fatalf("the server would not let in the best of requests: %s", status)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if len(header) > 16<<10 {
			return
		}
		if status := listener.statusOf(t, header); !strings.Contains(status, " 401 ") {
			return
		}
		fields := readHeader(header)
		if hosts := fields["host"]; len(hosts) != 1 || !meansLoopback(hosts[0]) {
			t.Errorf("passes with the hosts %q", hosts)
		}
		if origins := fields["origin"]; origins != nil {
			t.Errorf("passes with the origins %q", origins)
		}
		for name, want := range map[string]string{"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": ""} {
			values := fields[name]
			if values == nil || !strings.Contains(strings.ToLower(strings.Join(values, ",")), want) {
				t.Errorf("passes with the %s %q", name, values)
			}
		}
	})
}

// readHeader reads a header line by line, up to its end. What begins with a space goes on
// with the line before.
func readHeader(header string) map[string][]string {
	fields := make(map[string][]string)
	name := ""
	for line := range strings.SplitSeq(header, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			break
		}
		if values := fields[name]; strings.Trim(line[:1], " \t") == "" && values != nil {
			values[len(values)-1] = strings.Trim(values[len(values)-1]+" "+strings.Trim(line, " \t"), " \t")
			continue
		}
		before, value, _ := strings.Cut(line, ":")
		name = strings.ToLower(strings.Trim(before, " \t"))
		fields[name] = append(fields[name], strings.Trim(value, " \t"))
	}
	return fields
}

var port = regexp.MustCompile(`:[0-9]*$`)

// meansLoopback reports whether a Host is one that no name server is asked about, and
// that is this machine.
func meansLoopback(host string) bool {
	for _, name := range []string{host, port.ReplaceAllString(host, "")} {
		name, _, _ = strings.Cut(strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), ".")), "%")
		name = strings.TrimSuffix(name, "]")
		if ip := net.ParseIP(name); name == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
			return true
		}
	}
	return false
}
