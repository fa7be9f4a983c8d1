//go:build unix

package server_test

import (
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"execserver/internal/auth"
	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// failing is a listener whose first calls of accept fail.
type failing struct {
	net.Listener
	errors []error
	calls  atomic.Int64
}

func (l *failing) Accept() (net.Conn, error) {
	if n := l.calls.Add(1); n <= int64(len(l.errors)) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: l.errors[n-1]}
	}
	return l.Listener.Accept()
}

// A server goes on listening when the kernel is short of memory for a moment.
func TestAcceptFails(t *testing.T) {
	errors := []error{syscall.ENOMEM, syscall.ENOBUFS, syscall.EPERM, syscall.EMFILE, syscall.EPROTO}
	for _, kind := range []string{"websocket", "unix"} {
		t.Run(kind, func(t *testing.T) {
			srv := server.New(&server.Options{Auth: server.Unauthenticated})
			var l net.Listener
			var err error
			url := ""
			if kind == "unix" {
				path := t.TempDir() + "/s"
				l, err = auth.ListenUnix(path)
				url = "unix://" + path
			} else {
				l, err = net.Listen("tcp", "127.0.0.1:0")
				url = "ws://" + l.Addr().String()
			}
			if err != nil {
				t.Fatal(err)
			}
			serve, ended := srv.ServeWebSocket, make(chan error, 1)
			if kind == "unix" {
				serve = srv.ServeUnix
			}
			go func() { ended <- serve(&failing{Listener: l, errors: errors}) }()
			conn, err := transport.Dial(t.Context(), url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.Write([]byte(`{"id":1,"method":"initialize","params":{"clientName":"test"}}`)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(nil); err != nil {
				t.Errorf("no answer: %v", err)
			}
			_ = conn.Close(transport.Reason{})
			testkit.Shutdown(t, srv)
			if err := <-ended; err != server.ErrClosed {
				t.Errorf("the server stops with %v", err)
			}
		})
	}
}
