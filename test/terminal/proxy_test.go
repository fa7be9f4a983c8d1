//go:build unix

package terminal

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy is the network between a client and a server.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	server string
	down   bool
	conns  map[net.Conn]bool
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: server, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "ws://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(near) })
	}
}

func (p *proxy) serve(near net.Conn) {
	defer p.forget(near)
	server, ok := p.add(near, "")
	if !ok {
		return
	}
	far, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer p.forget(far)
	if _, ok := p.add(far, server); !ok {
		return
	}
	done := make(chan struct{}, 2)
	pump := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_, _ = to.Close(), from.Close()
		done <- struct{}{}
	}
	go pump(far, near)
	go pump(near, far)
	<-done
	<-done
}

// add remembers a connection. It fails while the network is down, or leads elsewhere.
func (p *proxy) add(conn net.Conn, server string) (current string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || server != "" && server != p.server {
		return "", false
	}
	p.conns[conn] = true
	return p.server, true
}

func (p *proxy) forget(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
	_ = conn.Close()
}

// cut breaks all connections, and makes new ones impossible.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// mend makes connections possible again, to another server if that is not "".
func (p *proxy) mend(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
	if server != "" {
		p.server = server
	}
}
