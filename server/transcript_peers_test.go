package server_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"execserver/internal/transcript"
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
	go s.srv.ServeOnly(transport.NewLines("JSON-RPC message from exec-server stdio", theirIn, theirOut, end, s.limit))
	return newLinesPeer(ourIn, ourOut, ourOut.Close, func() error { return errors.Join(ourIn.Close(), ourOut.Close()) }), nil
}

// linesPeer is a client with one message to a line.
type linesPeer struct {
	r       *bufio.Reader
	w       io.Writer
	end     func() error // of what we send
	closing func() error
}

func newLinesPeer(r io.Reader, w io.Writer, end, closing func() error) *linesPeer {
	return &linesPeer{bufio.NewReader(r), w, sync.OnceValue(end), sync.OnceValue(closing)}
}

func (p *linesPeer) Send(frame transcript.Frame, message []byte) error {
	if frame == transcript.Binary || frame == transcript.Fragmented {
		return errors.ErrUnsupported
	}
	if frame == transcript.Whole {
		message = append(message, '\n')
	}
	_, err := p.w.Write(message)
	return err
}

func (p *linesPeer) Receive() ([]byte, error) {
	line, err := p.r.ReadBytes('\n')
	switch {
	case err == nil:
		return line, nil
	case len(line) > 0:
		return nil, errors.New("the server's last line has no end")
	case errors.Is(err, io.EOF):
		return nil, &transcript.EndedError{}
	}
	return nil, err
}

func (p *linesPeer) End(int, string) error { return p.end() }
func (p *linesPeer) Drop()                 { _ = p.closing() }

type unixServer struct{ path string }

func listenUnix(t *testing.T, srv *server.Server) transcript.Server {
	t.Helper()
	// The paths of sockets have to be short.
	dir, err := os.MkdirTemp("", "es")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	l, err := transport.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeUnix(l)
	return unixServer{path}
}

func (s unixServer) Connect() (transcript.Conn, error) {
	conn, err := net.Dial("unix", s.path)
	if err != nil {
		return nil, err
	}
	return newLinesPeer(conn, conn, conn.(*net.UnixConn).CloseWrite, conn.Close), nil
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
	peer := &webSocketPeer{ended: make(chan error, 1)}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			peer.valve = &valve{Conn: conn}
			return peer.valve, err
		},
	}}
	conn, response, err := websocket.Dial(context.Background(), s.url, &websocket.DialOptions{HTTPClient: client})
	if err != nil && response != nil {
		text, _ := io.ReadAll(response.Body)
		return nil, &transcript.RefusedError{Status: response.StatusCode, Text: string(text)}
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1)
	peer.conn = conn
	return peer, nil
}

// webSocketPeer is a client of an independent implementation.
type webSocketPeer struct {
	conn  *websocket.Conn
	valve *valve

	// ended gets what End was answered; the library keeps it from Receive.
	ending atomic.Bool
	ended  chan error
}

func (p *webSocketPeer) Send(frame transcript.Frame, message []byte) error {
	ctx := context.Background()
	switch frame {
	case transcript.Binary:
		return p.conn.Write(ctx, websocket.MessageBinary, message)
	case transcript.Fragmented:
		w, err := p.conn.Writer(ctx, websocket.MessageText)
		for len(message) > 0 && err == nil {
			n := min(7, len(message))
			_, err = w.Write(message[:n])
			message = message[n:]
		}
		if err != nil {
			return err
		}
		return w.Close()
	case transcript.Partial:
		return errors.ErrUnsupported
	}
	return p.conn.Write(ctx, websocket.MessageText, message)
}

func (p *webSocketPeer) Receive() ([]byte, error) {
	kind, message, err := p.conn.Read(context.Background())
	if err != nil && p.ending.Load() {
		err = <-p.ended
	}
	var closing websocket.CloseError
	switch {
	case err == nil && kind != websocket.MessageText:
		return nil, errors.New("the server sent a binary message")
	case err == nil:
		return message, nil
	case errors.As(err, &closing):
		return nil, &transcript.EndedError{Code: int(closing.Code), Reason: closing.Reason}
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return nil, &transcript.EndedError{Code: int(websocket.StatusAbnormalClosure)}
	}
	return nil, err
}

func (p *webSocketPeer) End(code int, reason string) error {
	p.ending.Store(true)
	go func() {
		err := p.conn.Close(websocket.StatusCode(code), reason)
		if err == nil { // then the server's code was the same
			err = websocket.CloseError{Code: websocket.StatusCode(code)}
		}
		p.ended <- err
	}()
	return nil
}

func (p *webSocketPeer) Drop() {
	p.valve.drop()
	_ = p.conn.CloseNow()
}

// Mute implements transcript.Muter.
func (p *webSocketPeer) Mute(mute bool) { p.valve.shut(mute) }

// valve is a connection that can be kept from bringing anything.
type valve struct {
	net.Conn
	mu      sync.Mutex
	closed  chan struct{} // nil: open
	dropped bool
}

func (v *valve) shut(shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case shut && v.closed == nil:
		v.closed = make(chan struct{})
	case !shut && v.closed != nil:
		close(v.closed)
		v.closed = nil
	}
}

// drop closes the connection; what it has brought while shut is not let through.
func (v *valve) drop() {
	v.mu.Lock()
	v.dropped = true
	v.mu.Unlock()
	_ = v.Conn.Close()
	v.shut(false)
}

func (v *valve) Read(b []byte) (int, error) {
	n, err := v.Conn.Read(b)
	v.mu.Lock()
	closed := v.closed
	v.mu.Unlock()
	if closed != nil {
		<-closed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dropped {
		return 0, net.ErrClosed
	}
	return n, err
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
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	stdout, err = cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return stdin, stdout
}

func (s commandServer) Connect() (transcript.Conn, error) {
	if s.transport == "stdio" {
		stdin, stdout := s.start("stdio")
		return newLinesPeer(stdout, stdin, stdin.Close, func() error { return errors.Join(stdin.Close(), stdout.Close()) }), nil
	}
	if *s.url == "" {
		_, stdout := s.start("ws://127.0.0.1:0")
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			return nil, err
		}
		*s.url = strings.TrimSpace(line)
	}
	return webSocketServer{*s.url}.Connect()
}
