//go:build linux

package chaos

import (
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy is a bad network: it delays, stalls, cuts and forgets connections at random.
type proxy struct {
	listener net.Listener
	server   string
	seed     uint64
	calm     atomic.Bool // it behaves from now on

	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]bool
	number uint64
	faults map[string]int
}

func newProxy(t *testing.T, server string, seed uint64) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: server, seed: seed, conns: make(map[net.Conn]bool), faults: make(map[string]int)}
	p.wg.Go(p.accept)
	return p
}

func (p *proxy) url() string { return "ws://" + p.listener.Addr().String() }

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.number++
		l := &line{proxy: p, client: client, server: server, done: make(chan struct{})}
		random := rand.New(rand.NewPCG(p.seed, p.number))
		p.mu.Unlock()
		p.wg.Go(func() { l.pump(server, client, &l.up) })
		p.wg.Go(func() { l.pump(client, server, &l.down) })
		p.wg.Go(func() { l.misbehave(random) })
	}
}

// line is one connection through the proxy.
type line struct {
	proxy          *proxy
	client, server net.Conn
	up, down       valve // to the server, to the client
	ended          sync.Once
	done           chan struct{}
}

// valve controls one direction.
type valve struct {
	delay atomic.Int64 // nanoseconds for everything that passes
	shut  atomic.Bool
}

// pump copies one direction.
func (l *line) pump(to, from net.Conn, v *valve) {
	defer l.end(from)
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		time.Sleep(time.Duration(v.delay.Load()))
		for v.shut.Load() {
			select {
			case <-l.done:
				return
			case <-time.After(time.Millisecond):
			}
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// end closes both ends, unless the line is dead: then the other end does not notice.
func (l *line) end(broken net.Conn) {
	_ = broken.Close()
	if l.up.shut.Load() && l.down.shut.Load() && !l.proxy.calm.Load() {
		return
	}
	l.cut()
}

func (l *line) cut() {
	l.ended.Do(func() { close(l.done) })
	_ = l.client.Close()
	_ = l.server.Close()
}

// misbehave causes faults one after another until the line ends.
func (l *line) misbehave(random *rand.Rand) {
	for {
		select {
		case <-l.done:
			return
		case <-time.After(time.Duration(random.IntN(100)) * time.Millisecond):
		}
		if l.proxy.calm.Load() {
			l.delay(0)
			l.up.shut.Store(false)
			l.down.shut.Store(false)
			<-l.done
			return
		}
		switch random.IntN(12) {
		case 0, 1, 2:
			l.proxy.count("delay")
			l.delay(time.Duration(random.IntN(20)) * time.Millisecond)
		case 3, 4:
			l.delay(0)
		case 5, 6:
			l.proxy.count("stall")
			up, down := random.IntN(2) == 0, random.IntN(2) == 0
			l.up.shut.Store(up)
			l.down.shut.Store(down)
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
			l.up.shut.Store(false)
			l.down.shut.Store(false)
		case 7:
			l.proxy.count("half-open")
			l.up.shut.Store(true)
			l.down.shut.Store(true)
			l.wait()
			return
		case 8:
			l.proxy.count("one way")
			l.down.shut.Store(true)
			l.wait()
			return
		case 9:
			l.proxy.count("reset")
			_ = l.client.(*net.TCPConn).SetLinger(0)
			_ = l.server.(*net.TCPConn).SetLinger(0)
			l.cut()
			return
		case 10:
			l.proxy.count("cut")
			l.cut()
			return
		}
	}
}

// deadFor is the time after which the proxy closes both ends of a dead line.
const deadFor = 20 * time.Second

// wait keeps a dead line open.
func (l *line) wait() {
	dead := time.NewTimer(deadFor)
	defer dead.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-dead.C:
			l.cut()
			return
		case <-time.After(20 * time.Millisecond):
			if l.proxy.calm.Load() {
				l.cut()
				return
			}
		}
	}
}

func (l *line) delay(d time.Duration) {
	l.up.delay.Store(int64(d))
	l.down.delay.Store(int64(d))
}

func (p *proxy) count(fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[fault]++
}

// counts returns the number of faults by kind.
func (p *proxy) counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.faults)
}
