//go:build unix

package client_test

import (
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy passes connections on to a server, and can break them.
type proxy struct {
	url string
	l   net.Listener
	wg  sync.WaitGroup

	toServer, fromServer atomic.Int64 // bytes

	mu      sync.Mutex
	dial    func() (net.Conn, error) // the server
	conns   map[net.Conn]bool
	every   int64 // bytes from the server between two cuts, on average; 0: none
	left    int64 // bytes until the next cut
	maxCuts int
	cuts    int
	refuse  bool // new connections are closed at once
	refused int  // how many were
	lost    chan struct{}
}

// lose drops what clients send from now on, until the next cut. The result is closed when
// something was dropped.
func (p *proxy) lose() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = make(chan struct{})
	return p.lost
}

// loses reports whether to drop n bytes.
func (p *proxy) loses(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil || n == 0 {
		return false
	}
	select {
	case <-p.lost:
	default:
		close(p.lost)
	}
	return true
}

// newProxy makes a proxy in front of a server on a WebSocket or a unix socket; it
// is reached in the same way.
func newProxy(t testing.TB, serverURL string) *proxy {
	t.Helper()
	scheme, target, _ := strings.Cut(serverURL, "://")
	network, address := "tcp", "127.0.0.1:0"
	if scheme == "unix" {
		network, address = "unix", target+".proxy"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		url: scheme + "://" + l.Addr().String(), dial: func() (net.Conn, error) { return net.Dial(network, target) },
		l: l, conns: make(map[net.Conn]bool),
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		far, err := p.target()()
		if err != nil || !p.add(near, far) {
			_ = near.Close()
			if err == nil {
				_ = far.Close()
			}
			continue
		}
		p.wg.Go(func() { p.copy(far, near, false) })
		p.wg.Go(func() { p.copy(near, far, true) })
	}
}

func (p *proxy) add(near, far net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		p.refused++
		return false
	}
	p.conns[near], p.conns[far] = true, true
	return true
}

// handshakeBytes is about what a server sends before the first event. Nine
// connections in ten are spared until then: those that are cut make the client
// wait longer and longer.
const handshakeBytes = 2500

// copy passes bytes on; counted ones may bring the next cut, in the middle of
// whatever they are.
func (p *proxy) copy(to, from net.Conn, counted bool) {
	defer p.close(to, from)
	buf := make([]byte, 32<<10)
	var spared int // what is left of the handshake
	if counted && rand.IntN(10) > 0 {
		spared = handshakeBytes
	}
	for {
		n, err := from.Read(buf)
		if counted {
			p.fromServer.Add(int64(n))
		} else {
			p.toServer.Add(int64(n))
		}
		pass, cut := n, false
		if !counted && p.loses(n) {
			pass = 0
		}
		if counted {
			free := min(spared, n)
			spared -= free
			pass, cut = p.count(n - free)
			pass += free
		}
		if _, writeErr := to.Write(buf[:pass]); writeErr != nil {
			err = writeErr
		}
		if cut {
			p.cut()
			return
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) count(n int) (pass int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.every == 0 || p.cuts >= p.maxCuts {
		return n, false
	}
	if int64(n) < p.left {
		p.left -= int64(n)
		return n, false
	}
	pass = int(p.left)
	p.left = 1 + rand.Int64N(2*p.every)
	return pass, true
}

func (p *proxy) close(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
		_ = c.Close()
	}
}

// cutEvery begins to cut whenever about that many bytes have come from the
// server.
func (p *proxy) cutEvery(bytes int64, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every, p.left, p.maxCuts = bytes, bytes, p.cuts+times
}

// cut breaks all connections, half of the time with a reset if they know such a
// thing.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 {
		p.cuts++
	}
	p.lost = nil
	reset := rand.IntN(2) == 0
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	clear(p.conns)
}

// lead makes new connections lead to another server.
func (p *proxy) lead(dial func() (net.Conn, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dial = dial
}

func (p *proxy) target() func() (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dial
}

// setRefuse makes new connections impossible, or possible again.
func (p *proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

func (p *proxy) refusedCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

func (p *proxy) cutCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}
