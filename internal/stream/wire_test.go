package stream_test

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"testing"

	"execserver/internal/stream"
	"execserver/internal/testkit"
)

func TestMain(m *testing.M) { testkit.VerifyMain(testkit.Ledger(m)) }

var errBroken = errors.New("the wire is broken")

// wire is a link in memory that can break and stall. End 0 dials, and end 1 accepts.
type wire struct {
	mu      sync.Mutex
	changed sync.Cond
	ways    [2]way // from end 0, and from end 1
	broken  bool   // nothing more is sent, and what was sent arrives
	closed  [2]bool
	stalled bool // nothing arrives, not even the end
	most    int  // bytes that a read returns, unless it is 0
}

// way is one direction of a wire.
type way struct {
	buf  []byte // was sent and has not arrived
	sent []byte // all, if it is recorded
	n    int    // was sent
	cut  int    // the wire breaks after so many bytes; 0: at once
	lost bool   // and loses buf

	allowed int // bytes that arrive although the wire is stalled
}

// hold is what a wire holds in a direction, as a pipe does.
const hold = 64 << 10

func newWire() *wire {
	w := &wire{}
	w.changed.L = &w.mu
	w.ways[0].cut, w.ways[1].cut = math.MaxInt, math.MaxInt
	return w
}

// set changes the wire.
func (w *wire) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.changed.Broadcast()
}

func (w *wire) cut()    { w.set(func() { w.broken = true }) }
func (w *wire) stall()  { w.set(func() { w.stalled = true }) }
func (w *wire) resume() { w.set(func() { w.stalled = false }) }

// record returns what an end has sent.
func (w *wire) record(end int) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]byte(nil), w.ways[end].sent...)
}

type wireEnd struct {
	*wire
	end int
}

func (e wireEnd) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := &e.ways[1-e.end]
	for {
		switch {
		case e.closed[e.end]:
			return 0, io.ErrClosedPipe
		case e.stalled && from.allowed == 0:
		case len(from.buf) > 0:
			if e.stalled {
				p = p[:min(len(p), from.allowed)]
			}
			if e.most > 0 {
				p = p[:min(len(p), e.most)]
			}
			n := copy(p, from.buf)
			from.allowed = max(0, from.allowed-n)
			from.buf = from.buf[n:]
			e.changed.Broadcast()
			return n, nil
		case !e.stalled && (e.broken || e.closed[1-e.end]):
			return 0, errBroken
		}
		e.changed.Wait()
	}
}

func (e wireEnd) Write(p []byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	to := &e.ways[e.end]
	for {
		room := min(hold-len(to.buf), to.cut-to.n, len(p))
		switch {
		case e.closed[e.end]:
			return n, io.ErrClosedPipe
		case !e.stalled && (e.broken || e.closed[1-e.end]):
			return n, errBroken
		case len(p) == 0:
			return n, nil
		case room > 0:
			to.buf = append(to.buf, p[:room]...)
			to.sent = append(to.sent, p[:room]...)
			to.n, n, p = to.n+room, n+room, p[room:]
			if to.n == to.cut {
				e.broken = true
				for i := range e.ways {
					if e.ways[i].lost {
						e.ways[i].buf = nil
					}
				}
			}
			e.changed.Broadcast()
			continue
		case to.n >= to.cut:
			e.broken = true
			e.changed.Broadcast()
			continue
		}
		e.changed.Wait()
	}
}

func (e wireEnd) Close() error {
	e.set(func() { e.closed[e.end] = true })
	return nil
}

// network makes links to a server.
type network struct {
	t      testing.TB
	server *stream.Server
	serves sync.WaitGroup

	mu    sync.Mutex
	wires []*wire
	next  func(n int, w *wire) error // prepares the link with index n, or refuses it
	down  bool
}

func newNetwork(t testing.TB, opts stream.ServerOptions) *network {
	return &network{t: t, server: stream.NewServer(opts)}
}

var errDown = errors.New("the network is down")

func (n *network) link(context.Context) (io.ReadWriteCloser, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errDown
	}
	w := newWire()
	if n.next != nil {
		if err := n.next(len(n.wires), w); err != nil {
			return nil, err
		}
	}
	n.wires = append(n.wires, w)
	n.serves.Go(func() { _ = n.server.Serve("owner", wireEnd{w, 1}) })
	return wireEnd{w, 0}, nil
}

// last returns the link that was made last.
func (n *network) last() *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wires[len(n.wires)-1]
}

func (n *network) links() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.wires)
}

func (n *network) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

func (n *network) close() {
	_ = n.server.Close()
	n.serves.Wait()
}

// pair returns both ends of a stream over the network.
func pair(t *testing.T, opts stream.Options) (n *network, dialed, accepted *stream.Conn) {
	return pairWith(t, stream.ServerOptions{}, opts)
}

func pairWith(t *testing.T, serverOpts stream.ServerOptions, opts stream.Options) (n *network, dialed, accepted *stream.Conn) {
	t.Helper()
	got, over := make(chan *stream.Conn, 1), make(chan struct{})
	serverOpts.Handle = func(c *stream.Conn) {
		got <- c
		<-over
	}
	n = newNetwork(t, serverOpts)
	opts.Link = n.link
	dialed, err := stream.Dial(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = dialed.Close()
		close(over)
		n.close()
	})
	return n, dialed, <-got
}

// trickle lets up to n bytes of each direction of a stalled wire arrive.
func (w *wire) trickle(n int) {
	for end := range w.ways {
		w.set(func() { w.ways[end].allowed += n })
	}
}

// noisy returns a function that makes links to something that says a text and ends.
func noisy(text string) func(context.Context) (io.ReadWriteCloser, error) {
	return func(context.Context) (io.ReadWriteCloser, error) {
		w := newWire()
		other := wireEnd{w, 1}
		_, err := io.WriteString(other, text)
		return wireEnd{w, 0}, err
	}
}

// noContext returns a function that makes links without waiting.
func noContext(link func() (io.ReadWriteCloser, error)) func(context.Context) (io.ReadWriteCloser, error) {
	return func(context.Context) (io.ReadWriteCloser, error) { return link() }
}
