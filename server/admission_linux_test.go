package server

import (
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"testing"

	"execserver/internal/peer"
	"execserver/internal/testkit"
)

// TestUnreadAnswerEndsAtShutdown admits a peer that cannot be examined and does not read. It is
// pending, until the server shuts down.
func TestUnreadAnswerEndsAtShutdown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	far, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	request := httptest.NewRequest("GET", "/", nil)
	request.RemoteAddr = near.RemoteAddr().String()
	unseen, err := peer.FindTCP(near.LocalAddr().(*net.TCPAddr).AddrPort(), near.RemoteAddr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Skipf("the kernel does not tell who is at the other end: %v", err)
	}
	srv := New(&Options{Auth: Unauthenticated})
	out := new(response)
	if err := srv.admission.awaitReader(out, request, &unseen); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	upgraded := make(chan error, 1)
	go func() { upgraded <- out.Upgraded() }()
	waiting := func() int {
		srv.pending.mu.Lock()
		defer srv.pending.mu.Unlock()
		return srv.pending.count
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := waiting(); n != 1 {
			return fmt.Errorf("%d connections are pending", n)
		}
		return nil
	})
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-upgraded; !errors.Is(err, ErrClosed) {
		t.Errorf("a peer that does not read: %v", err)
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d connections are pending", n)
	}
}
