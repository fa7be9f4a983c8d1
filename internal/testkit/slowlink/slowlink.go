// Package slowlink is a TCP proxy that makes a fast connection as slow as a far one: tests
// and measurements need no privileges and no kernel module for it.
package slowlink

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options describe a link.
type Options struct {
	BitsPerSecond int64         // in each direction, all connections together; 0: no bound
	RoundTrip     time.Duration // half of it in each direction
	BreaksAfter   int64         // breaks the connections when so much has entered it towards the target; 0: never
}

// Link listens on a port of this machine and passes each connection on to one address. It
// loses nothing and keeps the order: a sender that is too quick waits.
type Link struct {
	target   string
	opts     Options
	listener net.Listener
	up, down direction // to the target, and from it
	ended    chan struct{}
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool // nil after Close
	opened int
}

// Listen makes a link from an address of this machine, such as 127.0.0.1:0, to a target.
func Listen(address, target string, opts Options) (*Link, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &Link{target: target, opts: opts, listener: listener, ended: make(chan struct{}), conns: make(map[net.Conn]bool)}
	l.wg.Go(l.accept)
	return l, nil
}

// Addr returns the address on which the link listens.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Bytes returns how many bytes of content have entered the link towards the target, and
// from it.
func (l *Link) Bytes() (up, down int64) { return l.up.bytes.Load(), l.down.bytes.Load() }

// Opened returns how many connections there were.
func (l *Link) Opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened
}

// Cut breaks the connections that are open. New ones may follow.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
}

// Close ends the link with its connections.
func (l *Link) Close() {
	_ = l.listener.Close()
	l.Cut()
	l.mu.Lock()
	if l.conns != nil {
		l.conns = nil
		close(l.ended)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.serve(near) })
	}
}

// kernelBuffer bounds what the kernel keeps of a connection on either side. It would
// otherwise take in several megabytes, which no link of this kind holds.
const kernelBuffer = 64 << 10

func (l *Link) serve(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !l.add(near, far) {
		return
	}
	defer l.remove(near, far)
	for _, c := range []net.Conn{near, far} {
		_ = c.(*net.TCPConn).SetReadBuffer(kernelBuffer)
		_ = c.(*net.TCPConn).SetWriteBuffer(kernelBuffer)
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.pass(far, near, &l.up) })
	wg.Go(func() { l.pass(near, far, &l.down) })
	wg.Wait()
}

func (l *Link) add(near, far net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		return false
	}
	l.conns[near], l.conns[far] = true, true
	l.opened++
	return true
}

func (l *Link) remove(near, far net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, near)
	delete(l.conns, far)
}

// piece is what one read returned, and when it leaves the link. The last piece is empty.
type piece struct {
	data    []byte
	arrives time.Time
}

// pass copies one direction of a connection until its end, and passes the end on.
func (l *Link) pass(to, from net.Conn, d *direction) {
	size := l.opts.pieceBytes()
	// The link holds what is on its way, and as much again waits before it.
	flight := make(chan piece, l.opts.flightBytes()/size+16)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.deliver(to, from, flight) })
	defer close(flight)
	for {
		buf := make([]byte, size)
		n, err := from.Read(buf)
		if n > 0 {
			sent := d.send(n, l.opts.BitsPerSecond)
			if d == &l.up && l.opts.BreaksAfter > 0 && d.bytes.Load() >= l.opts.BreaksAfter {
				l.Cut()
				return
			}
			select {
			case flight <- piece{buf[:n], sent.Add(l.opts.RoundTrip / 2)}:
			case <-l.ended:
				return
			}
			if !l.until(sent) {
				return
			}
		}
		if err != nil {
			flight <- piece{arrives: time.Now().Add(l.opts.RoundTrip / 2)}
			return
		}
	}
}

// deliver writes the pieces when they arrive.
func (l *Link) deliver(to, from net.Conn, flight <-chan piece) {
	for p := range flight {
		if !l.until(p.arrives) {
			break
		}
		if len(p.data) == 0 {
			_ = to.(*net.TCPConn).CloseWrite() // fails if the connection is broken
			break
		}
		if _, err := to.Write(p.data); err != nil {
			_ = from.Close() // nobody receives what follows
			break
		}
	}
	for range flight { // so that the reader does not wait for room
	}
}

// until waits for a time, and reports whether the link still exists.
func (l *Link) until(when time.Time) bool {
	wait := time.Until(when)
	if wait <= 0 {
		return true
	}
	select {
	case <-time.After(wait):
		return true
	case <-l.ended:
		return false
	}
}

// pieceBytes returns how much the link reads at a time: what it sends in two milliseconds.
func (o *Options) pieceBytes() int {
	const smallest, largest = 1 << 10, 64 << 10
	if o.BitsPerSecond == 0 {
		return largest
	}
	return int(min(max(o.BitsPerSecond/8/500, smallest), largest))
}

// flightBytes returns how much is on the way in one direction when the link is busy.
func (o *Options) flightBytes() int {
	const most = 64 << 20
	if o.BitsPerSecond == 0 {
		return most
	}
	return min(int(float64(o.BitsPerSecond)/8*o.RoundTrip.Seconds()), most)
}

// direction is the sender of one direction, which sends one byte after the other.
type direction struct {
	bytes atomic.Int64

	mu   sync.Mutex
	free time.Time // when the sender has sent everything that it has
}

// lateness is how much the link catches up after its timers were late. It also sends so
// much at once after a pause.
const lateness = 20 * time.Millisecond

// send returns when n more bytes are sent.
func (d *direction) send(n int, bitsPerSecond int64) time.Time {
	d.bytes.Add(int64(n))
	now := time.Now()
	if bitsPerSecond == 0 {
		return now
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if earliest := now.Add(-lateness); d.free.Before(earliest) {
		d.free = earliest
	}
	d.free = d.free.Add(time.Duration(float64(n) * 8 / float64(bitsPerSecond) * float64(time.Second)))
	if d.free.Before(now) {
		return now // what is sent at once after a pause travels as long as anything else
	}
	return d.free
}
