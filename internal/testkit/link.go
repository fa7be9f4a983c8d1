package testkit

import (
	"net"
	"strings"
	"sync"
	"testing"
)

// LinkState is what happens to the connections of a Link.
type LinkState int

const (
	LinkOpen    LinkState = iota
	LinkRefused           // they are reset, and new ones too
	LinkBroken            // they are reset, and new ones wait
	LinkSilent            // nothing gets through, and nobody is told; what waits arrives later
	linkClosed
)

// Link passes TCP connections on to a server, as a network does that can fail.
type Link struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	server  string
	state   LinkState
	changed chan struct{} // closed when state changes
	conns   map[*net.TCPConn]bool
}

// NewLink makes an open link to the address of a server, or that of its URL. It lasts until the
// test ends.
func NewLink(t testing.TB, server string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{listener: listener, server: addressOf(server), changed: make(chan struct{}), conns: make(map[*net.TCPConn]bool)}
	l.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.pass(conn.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.Set(linkClosed)
		l.wg.Wait()
	})
	return l
}

// Address returns the address at which clients reach the server over the link.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Over returns a URL of the server as one that leads over the link.
func (l *Link) Over(url string) string {
	return strings.Replace(url, addressOf(url), l.Address(), 1)
}

// addressOf returns the address of a URL, or the address itself.
func addressOf(url string) string {
	if _, rest, found := strings.Cut(url, "://"); found {
		url, _, _ = strings.Cut(rest, "/")
	}
	return url
}

// Set changes the state, and reports whether there were connections.
func (l *Link) Set(state LinkState) (used bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
	close(l.changed)
	l.changed = make(chan struct{})
	used = len(l.conns) > 0
	if state != LinkOpen && state != LinkSilent {
		for conn := range l.conns {
			reset(conn)
		}
	}
	return used
}

// Lead makes the link lead new connections to another server.
func (l *Link) Lead(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = addressOf(server)
}

// reset closes a connection in a way that the peer sees at once, whatever waits for it.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// await waits while the link is silent, or for a new connection broken. It returns the server,
// and whether the link is open.
func (l *Link) await(isNew bool) (server string, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state == LinkSilent || isNew && l.state == LinkBroken {
		changed := l.changed
		l.mu.Unlock()
		<-changed
		l.mu.Lock()
	}
	return l.server, l.state == LinkOpen
}

func (l *Link) pass(near *net.TCPConn) {
	defer reset(near)
	server, open := l.await(true)
	if !open {
		return
	}
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	far := conn.(*net.TCPConn)
	defer reset(far)
	if !l.add(server, near, far) {
		return
	}
	defer l.remove(near, far)
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(far, near) })
	l.pump(near, far)
	wg.Wait()
}

// add remembers connections, unless the link has changed since they were made.
func (l *Link) add(server string, conns ...*net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server != server || l.state != LinkOpen && l.state != LinkSilent {
		return false
	}
	for _, conn := range conns {
		l.conns[conn] = true
	}
	return true
}

func (l *Link) remove(conns ...*net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		delete(l.conns, conn)
	}
}

// pump copies until either end is closed, and closes both. While the link is silent it
// passes on neither bytes nor the end.
func (l *Link) pump(to, from *net.TCPConn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if _, open := l.await(false); !open {
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
