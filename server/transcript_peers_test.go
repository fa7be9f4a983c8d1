package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/auth"
	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/server"
	"execserver/transport"
)

// memoryServer connects within the process.
type memoryServer struct {
	srv   *server.Server
	limit int64
}

func (s memoryServer) Connect() (transcript.Conn, error) {
	client, end := transport.Pipe(s.limit)
	go s.srv.ServeConn(end)
	return memoryPeer{client}, nil
}

type memoryPeer struct{ conn transport.Conn }

func (p memoryPeer) Send(_ transcript.Frame, message []byte) error { return p.conn.Write(message) }

func (p memoryPeer) Receive() ([]byte, error) {
	message, err := p.conn.Read(nil)
	if errors.Is(err, io.EOF) || errors.Is(err, transport.ErrClosed) {
		err = &transcript.EndedError{}
	}
	return message, err
}

func (p memoryPeer) End(code int, reason string) error {
	return p.conn.Close(transport.Reason{Code: code, Text: reason})
}

func (p memoryPeer) Drop() { _ = p.conn.Close(transport.Reason{}) }

// stdioServer serves connections that are pairs of pipes, as on stdio.
type stdioServer struct {
	srv   *server.Server
	limit int64
}

func (s stdioServer) Connect() (transcript.Conn, error) {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	end := func() error { return errors.Join(theirIn.Close(), theirOut.Close()) }
	go s.srv.ServeOnly(transport.NewLines("stdio", theirIn, theirOut, end, s.limit))
	return transcript.NewLines(ourIn, ourOut, ourOut.Close, func() error { return errors.Join(ourIn.Close(), ourOut.Close()) }), nil
}

// unixServer connects as the user unixPeer.
type unixServer struct{ path string }

func listenUnix(t *testing.T, srv *server.Server) transcript.Server {
	t.Helper()
	dir := testkit.SocketDir(t)
	path := filepath.Join(dir, "socket")
	listen := auth.ListenUnix
	if unixPeer() != os.Geteuid() { // who has to get there
		listen = auth.ListenUnixForAll
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeUnix(l)
	return unixServer{path}
}

func (s unixServer) Connect() (conn transcript.Conn, err error) {
	asUser(unixPeer(), func() { conn, err = transcript.DialUnix(s.path) })
	return conn, err
}

// webSocketOnUnix connects as the user unixPeer.
type webSocketOnUnix struct{ path string }

func (s webSocketOnUnix) Connect() (transcript.Conn, error) {
	return transcript.DialWebSocketBy(context.Background(), s, "ws://localhost", nil, nil)
}

// DialContext implements transcript.Dialer.
func (s webSocketOnUnix) DialContext(ctx context.Context, _, _ string) (conn net.Conn, err error) {
	asUser(unixPeer(), func() { conn, err = new(net.Dialer).DialContext(ctx, "unix", s.path) })
	return conn, err
}

type webSocketServer struct{ url string }

func listenWebSocket(t *testing.T, srv *server.Server) transcript.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(l)
	return webSocketServer{"ws://" + l.Addr().String()}
}

func (s webSocketServer) Connect() (transcript.Conn, error) {
	return transcript.DialWebSocket(context.Background(), s.url, nil, nil)
}

// tlsServer connects with a client certificate.
type tlsServer struct {
	url    string
	config *tls.Config
}

func listenTLS(t *testing.T, srv *server.Server, authority *testkit.Authority) transcript.Server {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(authority.Server())
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: authority.Roots(), ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(l)
	return tlsServer{"wss://" + l.Addr().String(), &tls.Config{
		RootCAs: authority.Roots(), Certificates: []tls.Certificate{authority.Client("test", nil)},
	}}
}

func (s tlsServer) Connect() (transcript.Conn, error) {
	return transcript.DialWebSocket(context.Background(), s.url, s.config, nil)
}

// commandServer is another program; every connection over stdio is a process of
// its own.
type commandServer struct {
	t         *testing.T
	command   []string
	file      *transcript.File
	transport string
	url       *string // of the process that listens
}

func (s commandServer) start(listen string) (stdin io.WriteCloser, stdout io.ReadCloser) {
	args := append(s.command[1:len(s.command):len(s.command)], "--listen", listen)
	for name, value := range s.file.Options {
		args = append(args, "--"+name+"="+value)
	}
	cmd := exec.Command(s.command[0], args...)
	cmd.Env = append(os.Environ(), s.file.Env...)
	stdin, stdout = testkit.StartPiped(s.t, cmd)
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return stdin, stdout
}

func (s commandServer) Connect() (transcript.Conn, error) {
	if s.transport == "stdio" {
		stdin, stdout := s.start("stdio")
		return transcript.NewLines(stdout, stdin, stdin.Close, func() error { return errors.Join(stdin.Close(), stdout.Close()) }), nil
	}
	if *s.url == "" {
		_, stdout := s.start("ws://127.0.0.1:0")
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			return nil, err
		}
		*s.url = strings.TrimSpace(line)
	}
	return transcript.DialWebSocket(context.Background(), *s.url, nil, nil)
}
