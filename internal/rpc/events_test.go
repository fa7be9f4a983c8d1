package rpc_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/rpc"
	"execserver/transport"
)

// pinging is a transport with pings over one in memory. Its peer answers as the
// test says.
type pinging struct {
	transport.Conn
	onPong   func(uint64)
	received atomic.Uint64

	mu     sync.Mutex
	pings  []uint64
	answer bool          // answer every ping at once
	stuck  chan struct{} // not nil: pings wait for it
}

func (p *pinging) OnPong(f func(uint64)) { p.onPong = f }
func (p *pinging) Received() uint64      { return p.received.Load() }

func (p *pinging) Ping(n uint64) error {
	p.mu.Lock()
	p.pings = append(p.pings, n)
	answer, stuck := p.answer, p.stuck
	p.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	if answer {
		p.onPong(n)
	}
	return nil
}

// block has pings wait until the channel that it returns is closed.
func (p *pinging) block() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = make(chan struct{})
	return p.stuck
}

// seen returns the pings so far and forgets them.
func (p *pinging) seen() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	pings := p.pings
	p.pings = nil
	return pings
}

// serveWithPings serves a connection on a transport with pings.
func serveWithPings(t *testing.T, h rpc.Handler, opts *rpc.Options) (*running, *client, *pinging) {
	far, near := transport.Pipe(0)
	p := &pinging{Conn: near}
	return serveOn(t, p, h, opts), &client{t, far}, p
}

// source supplies events of equal size, each of which tells its offset.
type source struct {
	size int

	mu     sync.Mutex
	left   int
	sent   uint64
	pings  []uint64 // the offsets at which they were sent, from number 1 on
	acked  []uint64 // offsets
	broken error
	empty  func() // called, once, when there is nothing left
}

func (s *source) AppendEvent(frame []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(frame) != 0 {
		s.broken = fmt.Errorf("the frame begins with %q", frame)
	}
	if s.left == 0 {
		empty := s.empty
		s.empty = nil
		if empty != nil {
			s.mu.Unlock()
			empty()
			s.mu.Lock()
		}
		return frame, false
	}
	s.left--
	frame = fmt.Appendf(frame, `{"method":"event","params":"%d `, s.sent)
	frame = append(append(frame, strings.Repeat(".", s.size-len(frame)-2)...), `"}`...)
	s.sent += uint64(len(frame))
	return frame, true
}

func (s *source) Pinged(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pings = append(s.pings, s.sent); n != uint64(len(s.pings)) {
		s.broken = fmt.Errorf("ping %d has the number %d", len(s.pings), n)
	}
}

func (s *source) Acknowledged(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 { // a heartbeat's ping before any other
		s.acked = append(s.acked, s.pings[n-1])
	}
}

// at returns the offsets at which pings were sent.
func (s *source) at(pings []uint64) (offsets []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range pings {
		offsets = append(offsets, s.pings[n-1])
	}
	return offsets
}

func (s *source) give(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left += n
}

// highest is the highest offset acknowledged.
func (s *source) highest() (most uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, offset := range s.acked {
		most = max(most, offset)
	}
	return most
}

// TestEventsWithoutPings takes what was sent for read.
func TestEventsWithoutPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := serve(t, handler{"echo": echo}, nil)
		s := &source{size: 100, left: 10}
		c.SetSources(s)
		offset := uint64(0)
		for range 10 {
			peer.expect(fmt.Sprintf(`{"method":"event","params":"%d *`, offset))
			offset += 100
		}
		synctest.Wait()
		if got := s.highest(); got != offset {
			t.Errorf("acknowledged up to %d, want %d", got, offset)
		}
		// Other messages do not count.
		peer.send(`{"id":1,"method":"echo","params":1}`)
		peer.next()
		s.give(1)
		c.Wake()
		peer.expect(fmt.Sprintf(`{"method":"event","params":"%d *`, offset))
		if s.broken != nil {
			t.Error(s.broken)
		}
	})
}

// TestControlBeforeBulk answers a request although events wait in any number.
func TestControlBeforeBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := serve(t, handler{"echo": echo}, nil)
		s := &source{size: 64 << 10, left: 10_000}
		c.SetSources(s)
		synctest.Wait() // the transport is full of events
		for i := range 20 {
			peer.send(`{"id":%d,"method":"echo","params":1}`, i)
		}
		synctest.Wait()
		var got []string
		for range 70 {
			got = append(got, peer.next()[:10])
		}
		first, replies := 0, 0
		for i, start := range got {
			if strings.HasPrefix(start, `{"id":`) {
				if replies++; replies == 1 {
					first = i
				}
			}
		}
		// What the transport held and one event that was being written go first.
		if replies != 20 || first > 18 || !strings.HasPrefix(got[first+19], `{"id":`) {
			t.Errorf("%d replies, the first at %d: %q", replies, first, got)
		}
		_ = peer.conn.Close(transport.Reason{})
	})
}

// TestRepliesDoNotStarveEvents sends an event after every batch of replies.
func TestRepliesDoNotStarveEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := serve(t, handler{"echo": echo}, nil)
		c.SetSources(&source{size: 100, left: 5})
		for i := range 100 {
			peer.send(`{"id":%d,"method":"echo","params":1}`, i)
		}
		events := 0
		for range 105 {
			if strings.HasPrefix(peer.next(), `{"method":"event"`) {
				events++
			}
		}
		if events != 5 {
			t.Errorf("%d events", events)
		}
	})
}

// TestAcknowledgedByPongs waits for pongs of a peer that sends them.
func TestAcknowledgedByPongs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, every = 32 << 10, 256 << 10
		c, peer, p := serveWithPings(t, handler{}, &rpc.Options{ProbeTimeout: time.Second, PingInterval: time.Hour})
		s := &source{size: size, left: 1}
		c.SetSources(s)
		peer.next()
		synctest.Wait()
		if pings := s.at(p.seen()); len(pings) != 1 || pings[0] != size || s.highest() != 0 {
			t.Fatalf("after the first event: pings %d, acknowledged %d", pings, s.highest())
		}
		p.onPong(1)
		if got := s.highest(); got != size {
			t.Errorf("acknowledged %d", got)
		}
		// From then on a ping for every 256 KiB, and nothing without its pong.
		s.give(32)
		c.Wake()
		for range 32 {
			peer.next()
		}
		synctest.Wait()
		pings := p.seen()
		if len(pings) != 4 || s.highest() != size {
			t.Fatalf("pings %d, acknowledged %d", pings, s.highest())
		}
		for i, n := range s.at(pings) {
			if want := uint64(size + (i+1)*every); n != want {
				t.Errorf("ping %d at %d, want %d", i, n, want)
			}
		}
		time.Sleep(time.Minute) // fake: an answer may take its time
		p.onPong(pings[1])
		if got, want := s.highest(), uint64(size+2*every); got != want {
			t.Errorf("acknowledged %d, want %d", got, want)
		}
		p.onPong(100) // which nobody has sent
		if got, want := s.highest(), uint64(size+2*every); got != want {
			t.Errorf("acknowledged %d by an answer to nothing, want %d", got, want)
		}
	})
}

// TestPingsInFlight sends much more than a peer acknowledges. Few pings wait for their
// pongs; the next pong makes room for one about everything that was sent meanwhile.
func TestPingsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, events = 256 << 10, 100
		c, peer, p := serveWithPings(t, handler{}, &rpc.Options{PingInterval: time.Hour})
		s := &source{size: size, left: events}
		c.SetSources(s)
		p.onPong(0) // it does answer
		for range events {
			peer.next()
		}
		synctest.Wait()
		pings := p.seen()
		if len(pings) != 16 {
			t.Fatalf("%d pings wait for their pongs", len(pings))
		}
		p.onPong(pings[0])
		synctest.Wait()
		if more := s.at(p.seen()); len(more) != 1 || more[0] != events*size {
			t.Errorf("pings at %d after a pong, want one at %d", more, events*size)
		}
		p.onPong(17)
		synctest.Wait()
		if more := p.seen(); len(more) != 0 || s.highest() != events*size {
			t.Errorf("pings %d, acknowledged %d of %d", more, s.highest(), events*size)
		}
	})
}

// TestWantAck pings for what the source wants acknowledged, also when it comes
// just after the source had nothing.
func TestWantAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1000
		c, peer, p := serveWithPings(t, handler{}, &rpc.Options{PingInterval: time.Hour})
		p.answer = true
		s := &source{size: size, left: 1}
		c.SetSources(s)
		peer.next()
		synctest.Wait() // the first event is always asked for
		s.mu.Lock()
		s.empty = func() {
			s.give(1)
			c.WantAck()
		}
		s.mu.Unlock()
		c.Wake()
		peer.next()
		synctest.Wait()
		if got := s.highest(); got != 2*size {
			t.Errorf("acknowledged %d of %d", got, 2*size)
		}
		p.seen()
		c.Wake()
		synctest.Wait()
		if pings := p.seen(); len(pings) != 0 {
			t.Errorf("pings %d that nobody wants", pings)
		}
	})
}

// TestAcknowledgedBySilence takes what was sent for read when the peer does not
// answer pings, until it does.
func TestAcknowledgedBySilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 300 << 10
		c, peer, p := serveWithPings(t, handler{}, &rpc.Options{ProbeTimeout: time.Second, PingInterval: time.Hour})
		s := &source{size: size, left: 2}
		c.SetSources(s)
		peer.next()
		peer.next()
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if got := s.highest(); got != 0 {
			t.Errorf("acknowledged %d before the timeout", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := s.highest(); got != 2*size {
			t.Errorf("acknowledged %d after the timeout, want %d", got, 2*size)
		}
		s.give(1)
		c.Wake()
		peer.next()
		synctest.Wait()
		if got := s.highest(); got != 3*size {
			t.Errorf("acknowledged %d after one more, want %d", got, 3*size)
		}
		// A late answer is an answer: there is better evidence from now on.
		p.seen()
		p.onPong(1)
		s.give(1)
		c.Wake()
		peer.next()
		synctest.Wait()
		if pings := s.at(p.seen()); len(pings) != 1 || pings[0] != 4*size || s.highest() != 3*size {
			t.Errorf("after a late answer: pings %d, acknowledged %d", pings, s.highest())
		}
		time.Sleep(time.Minute)
		if got := s.highest(); got != 3*size {
			t.Errorf("acknowledged %d without an answer", got)
		}
	})
}

// watched is a Source that knows when it must not be used.
type watched struct {
	gone atomic.Bool
	bad  *atomic.Int64
}

func (w *watched) AppendEvent(frame []byte) ([]byte, bool) {
	w.use()
	return append(frame, `{"method":"event"}`...), true
}

func (w *watched) Pinged(uint64)       { w.use() }
func (w *watched) Acknowledged(uint64) { w.use() }

func (w *watched) use() {
	for range 10 { // takes its time
		runtime.Gosched()
		if w.gone.Load() {
			w.bad.Add(1)
		}
	}
}

// TestSetSources replaces sources while they are used.
func TestSetSources(t *testing.T) {
	for _, pings := range []bool{false, true} {
		far, near := transport.Pipe(0)
		p := &pinging{Conn: near, answer: true}
		var c *running
		if pings {
			c = serveOn(t, p, handler{}, &rpc.Options{PingInterval: time.Microsecond})
		} else {
			c = serveOn(t, near, handler{}, nil)
		}
		var bad atomic.Int64
		reader := make(chan struct{})
		go func() {
			defer close(reader)
			for {
				if _, err := far.Read(nil); err != nil {
					return
				}
			}
		}()
		for range 300 {
			w := &watched{bad: &bad}
			c.SetSources(w)
			c.Wake()
			c.SetSources()
			w.gone.Store(true)
		}
		_ = far.Close(transport.Reason{})
		<-reader
		_ = c.wait(t)
		if n := bad.Load(); n > 0 {
			t.Errorf("pings %v: sources were used %d times after they had been replaced", pings, n)
		}
	}
}

// TestReplyBeforeItsEvents has events that a request causes become ready, right
// after its reply, while the writer is busy and about to ask for events.
func TestReplyBeforeItsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, near := transport.Pipe(0)
		pass := make(chan struct{}) // for a write
		s := &source{size: 100}
		var c *running
		h := handler{"echo": echo, "start": func(r *rpc.Request) {
			r.Reply("started")
			s.give(1)
			c.Wake()
		}}
		c = serveOn(t, &tapped{near, func([][]byte) { <-pass }}, h, nil)
		peer := &client{t, far}
		c.SetSources(s)
		synctest.Wait()
		peer.send(`{"id":1,"method":"echo","params":1}`)
		synctest.Wait()                                  // the writer has the first reply
		peer.send(`{"id":2,"method":"echo","params":2}`) // is taken with it next,
		c.Wake()                                         // and with this
		synctest.Wait()
		pass <- struct{}{}
		synctest.Wait()
		peer.send(`{"id":3,"method":"start"}`)
		synctest.Wait()
		close(pass)
		peer.expect(`{"id":1,"result":1}`)
		peer.expect(`{"id":2,"result":2}`)
		peer.expect(`{"id":3,"result":"started"}`)
		peer.expect(`{"method":"event"*`)
	})
}
