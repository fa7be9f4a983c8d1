package page

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// network is a way to a server that can be cut.
type network struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newNetwork(t *testing.T, s *server) *network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{listener: l, target: strings.TrimPrefix(s.url, "ws://"), conns: make(map[net.Conn]bool)}
	t.Cleanup(func() {
		_ = l.Close()
		n.setCut(true)
	})
	go n.accept()
	return n
}

// leads returns a URL of the server as one that leads over the network.
func (n *network) leads(url string) string {
	return strings.Replace(url, n.target, n.listener.Addr().String(), 1)
}

func (n *network) accept() {
	for {
		near, err := n.listener.Accept()
		if err != nil {
			return // closed
		}
		far, err := net.Dial("tcp", n.target)
		if err != nil || !n.add(near, far) {
			_ = near.Close()
			continue
		}
		for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
			}()
		}
	}
}

func (n *network) add(near, far net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		_ = far.Close()
		return false
	}
	n.conns[near], n.conns[far] = true, true
	return true
}

// setCut cuts all connections and keeps others from being made, or no longer.
func (n *network) setCut(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		for c := range n.conns {
			_ = c.Close()
		}
		clear(n.conns)
	}
}
