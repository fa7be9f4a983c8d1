package stream_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"execserver/internal/stream"
	"execserver/internal/testkit"
)

// cut says when a link breaks: after a number of bytes from either end.
type cut struct {
	after [2]int
	lost  bool // what is under way does not arrive
	most  int  // that a read returns; 0 for all
}

var never = cut{after: [2]int{math.MaxInt, math.MaxInt}}

// survive exchanges bytes over links of which the first ones break. What is read must be exactly what was written. It returns
// how many links there were.
func survive(t *testing.T, up, down int, seed uint64, most int, cuts []cut) (links int) {
	t.Helper()
	streams, over := make(chan *stream.Conn, 1000), make(chan struct{})
	n := newNetwork(t, stream.ServerOptions{MaxStreams: 1000, Handle: func(c *stream.Conn) {
		streams <- c
		<-over
	}})
	n.next = func(i int, w *wire) error {
		if i < len(cuts) {
			w.most = cuts[i].most
			for end := range w.ways {
				w.ways[end].cut, w.ways[end].lost = cuts[i].after[end], cuts[i].lost
			}
		}
		return nil
	}
	opts := stream.Options{Link: n.link}
	dialed, err := stream.Dial(t.Context(), opts)
	for ; err != nil && n.links() <= len(cuts); dialed, err = stream.Dial(t.Context(), opts) {
	}
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := stream.Secrets(dialed)
	for accepted := range streams {
		if other, _, _ := stream.Secrets(accepted); string(other) != string(id) {
			continue // the answer was lost
		}
		if err := exchange(dialed, accepted, up, down, seed, most); err != nil {
			t.Errorf("%d up, %d down, seed %d, cuts %v: %v", up, down, seed, cuts, err)
		}
		break
	}
	close(over)
	n.close()
	return n.links()
}

// TestEveryCut breaks a link after every number of bytes from either end: the first one, and the one that replaces it.
func TestEveryCut(t *testing.T) {
	for _, link := range []string{"first", "second"} {
		for end := range 2 {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, end %d, lost=%t", link, end, lost), func(t *testing.T) {
					t.Parallel()
					for at := 0; ; at++ {
						this := never
						this.after[end], this.lost = at, lost
						cuts := []cut{this}
						if link == "second" {
							cuts = []cut{{after: [2]int{150, 150}}, this}
						}
						links := 0
						synctest.Test(t, func(t *testing.T) { links = survive(t, 100, 100, uint64(at), 40, cuts) })
						if t.Failed() {
							return
						}
						if links <= len(cuts) { // the last cut never came
							if at < 110 { // no handshake is shorter
								t.Errorf("the last cut was after %d bytes", at)
							}
							return
						}
					}
				})
			}
		}
	}
}

// TestDribble has links from which little is read at a time.
func TestDribble(t *testing.T) {
	for _, most := range []int{1, 11, 12, 13, 24, 4095, 4096, 4097, 1<<16 + 11, 1<<16 + 12, 1<<16 + 13} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				this := never
				this.most = most
				n := min(1<<20, most<<13)
				survive(t, n, n, 1, n/8, []cut{this})
			})
		})
	}
}

// FuzzCuts breaks links anywhere.
func FuzzCuts(f *testing.F) {
	f.Add(uint64(1), uint32(100), uint32(100), uint32(10), []byte("\x01\x00\x50\x00\x60\x02\x00\x90\x00\x40"))
	f.Add(uint64(2), uint32(1<<20), uint32(3<<20), uint32(1<<18), []byte("\x1b\xff\xff\xff\xff\x1f\x00\xff\x00\xff"))
	f.Add(uint64(3), uint32(5<<20), uint32(0), uint32(1<<20), []byte("\x09\xff\xff\x00\x00\x19\xff\xff\x00\x00\x01\xff\x00\x00\x00\x0a\x00\x00\x10\x00"))
	f.Fuzz(func(t *testing.T, seed uint64, up, down, most uint32, plan []byte) {
		var cuts []cut
		for ; len(plan) >= 5 && len(cuts) < 100; plan = plan[5:] {
			this := never
			for end := range this.after {
				if plan[0]&(1<<end) != 0 {
					this.after[end] = int(binary.BigEndian.Uint16(plan[1+2*end:])) << (plan[0] >> 3 & 7)
				}
			}
			this.lost, this.most = plan[0]&4 != 0, []int{0, 1, 13, 4097}[plan[0]>>6]
			cuts = append(cuts, this)
		}
		synctest.Test(t, func(t *testing.T) { survive(t, int(up%(8<<20)), int(down%(8<<20)), seed, int(most%(2<<20)), cuts) })
	})
}

// fragile is a socket that breaks after a number of bytes in both directions.
type fragile struct {
	net.Conn
	left atomic.Int64
}

func (f *fragile) use(n int, err error) (int, error) {
	if f.left.Add(-int64(n)) < 0 {
		_ = f.Close()
	}
	return n, err
}

func (f *fragile) Read(p []byte) (int, error)  { return f.use(f.Conn.Read(p)) }
func (f *fragile) Write(p []byte) (int, error) { return f.use(f.Conn.Write(p)) }

// TestCutsUnderLoad breaks 200 links between sockets while bytes flow in both directions.
func TestCutsUnderLoad(t *testing.T) {
	t.Parallel()
	const cuts = 200
	listener, err := net.Listen("unix", filepath.Join(testkit.SocketDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	streams, over := make(chan *stream.Conn, 1), make(chan struct{})
	server := stream.NewServer(stream.ServerOptions{Handle: func(c *stream.Conn) {
		streams <- c
		<-over
	}})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = server.Serve("owner", conn) })
		}
	})
	var links, backs atomic.Int64
	r := rand.New(rand.NewPCG(1, 1)) // one link is made at a time
	opts := stream.Options{Back: func() { backs.Add(1) }, Link: noContext(func() (io.ReadWriteCloser, error) {
		conn, err := net.Dial("unix", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		f := &fragile{Conn: conn}
		f.left.Store(math.MaxInt64)
		if links.Add(1) <= cuts {
			f.left.Store(1000 + r.Int64N(1<<r.IntN(19)))
		}
		return f, nil
	})}
	dialed, err := stream.Dial(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	const all = 32 << 20
	if err := exchange(dialed, <-streams, all, all, 1, 1<<18); err != nil {
		t.Error(err)
	}
	if links.Load() <= cuts {
		t.Errorf("there were %d links", links.Load())
	}
	t.Logf("%d links, %d of use", links.Load(), backs.Load())
	close(over)
	_, _ = server.Close(), listener.Close()
	wg.Wait()
}
