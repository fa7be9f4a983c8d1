//go:build linux

package fleet

import (
	"net"
	"sync"
	"testing"
)

// The states of a link.
const (
	open    = iota
	refused // connections are reset, and new ones too
	silent  // nothing gets through, and nobody is told; what waits arrives later
	closed
)

// link passes TCP connections on to an address, until it is cut.
type link struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu      sync.Mutex
	state   int
	changed chan struct{} // closed when state changes
	conns   map[*net.TCPConn]bool
	opened  int // connections so far
}

func newLink(t testing.TB, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, to: to, changed: make(chan struct{}), conns: make(map[*net.TCPConn]bool)}
	k.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			k.wg.Go(func() { k.pass(conn.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		k.set(closed)
		k.wg.Wait()
	})
	return k
}

func (k *link) address() string { return k.l.Addr().String() }

// set changes the state.
func (k *link) set(state int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state = state
	close(k.changed)
	k.changed = make(chan struct{})
	if state == refused || state == closed {
		for conn := range k.conns {
			reset(conn)
		}
	}
}

// reset closes a connection in a way that the peer sees at once, whatever waits for it.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// passes waits while the link is silent, and reports whether it is open.
func (k *link) passes() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.state == silent {
		changed := k.changed
		k.mu.Unlock()
		<-changed
		k.mu.Lock()
	}
	return k.state == open
}

func (k *link) pass(near *net.TCPConn) {
	defer reset(near)
	if !k.passes() {
		return
	}
	conn, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	far := conn.(*net.TCPConn)
	defer reset(far)
	k.mu.Lock()
	k.conns[near], k.conns[far] = true, true
	k.opened++
	k.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { k.pump(far, near) })
	k.pump(near, far)
	wg.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, near)
	delete(k.conns, far)
}

// pump copies until either end is closed, and closes both. While the link is silent it
// passes on neither bytes nor the end.
func (k *link) pump(to, from *net.TCPConn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !k.passes() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// network is the routes of a cluster, with a link for each direction in which a node
// connects to another one.
type network struct {
	links map[[2]int]*link
	// bypass is what nodes tell each other about where they listen. Nothing gets through it, or
	// they would find ways around the links.
	bypass *link
}

func newNetwork(t testing.TB, nodes []*node) *network {
	t.Helper()
	n := &network{links: make(map[[2]int]*link), bypass: newLink(t, "")}
	n.bypass.set(refused)
	for from := range nodes {
		for to := range nodes {
			if from != to {
				n.links[[2]int{from, to}] = newLink(t, nodes[to].cluster)
			}
		}
	}
	return n
}

func (n *network) route(from, to int) string { return n.links[[2]int{from, to}].address() }

// between changes the state of the network between two nodes.
func (n *network) between(a, b, state int) {
	n.links[[2]int{a, b}].set(state)
	n.links[[2]int{b, a}].set(state)
}
