package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"execserver/transport"
)

// missedPings is how many pings in a row may stay unanswered by a peer that has answered
// one before.
const missedPings = 3

// pingEvery is how many bytes of events are sent between two pings, whose pongs
// acknowledge them. At most maxPings wait for their pongs: with pingEvery that is as much
// as a process retains by default, so a distant peer acknowledges as often as a near one.
const (
	pingEvery = 256 << 10
	maxPings  = 16
)

// ErrSilent is the cause when a peer that answered pings before has fallen silent.
var ErrSilent = errors.New("peer does not answer pings any more")

// ErrTakenOver is the cause when another connection resumed the session.
var ErrTakenOver = errors.New("session has been resumed by another connection")

var goingAway = transport.Reason{Code: transport.CodeGoingAway, Text: "going away"}

// heartbeat records signs of life of the peer. Pings for acknowledgement are numbered, and
// a pong carries the number of its ping, so it also says what the peer has read.
type heartbeat struct {
	heard    atomic.Uint64 // grows with every sign of life
	answers  atomic.Bool   // the peer has answered a ping
	pinging  atomic.Bool   // a ping is being written
	wantAck  atomic.Bool   // the source waits for an acknowledgement
	pinged   atomic.Uint64 // number of the last ping for acknowledgement; only the writer sets it
	answered atomic.Uint64 // the highest number that was acknowledged
	full     atomic.Bool   // the writer waits for a pong before its next ping
	unpinged int           // bytes of events since the last ping; used by the writer alone
	silent   atomic.Bool   // the first ping was not answered in time; valid until answers is set
	reads    atomic.Uint64 // odd while the reader waits for the peer

	mu        sync.Mutex
	nextHeard chan struct{} // closed at the next sign of life, created on demand
	first     *time.Timer   // waits for the answer to the first ping
}

// hear records a sign of life.
func (h *heartbeat) hear() {
	h.heard.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nextHeard != nil {
		close(h.nextHeard)
		h.nextHeard = nil
	}
}

// listen records that the reader starts or stops waiting for the peer.
func (h *heartbeat) listen() { h.reads.Add(1) }

// nextSign returns a channel that is closed at the next sign of life.
func (h *heartbeat) nextSign() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nextHeard == nil {
		h.nextHeard = make(chan struct{})
	}
	return h.nextHeard
}

// The reader calls pong for every pong.
func (c *Conn) pong(n uint64) {
	c.life.answers.Store(true)
	c.life.hear()
	if n > c.life.pinged.Load() {
		return // the peer has made it up
	}
	c.acknowledged(n)
	if c.life.full.Swap(false) {
		c.WantAck()
	}
}

// acknowledged passes on that the peer has received what precedes ping n.
func (c *Conn) acknowledged(n uint64) {
	for before := c.life.answered.Load(); before < n; before = c.life.answered.Load() {
		if c.life.answered.CompareAndSwap(before, n) {
			break
		}
	}
	c.out.eachAcknowledger(func(a Acknowledger) { a.Acknowledged(n) })
}

// The writer calls mark before it pings for an acknowledgement, and gets the number of the
// ping. A heartbeat's ping may carry the number as soon as it is stored, because everything
// before it has been written.
func (c *Conn) mark() (n uint64) {
	n = c.life.pinged.Load() + 1
	c.out.eachAcknowledger(func(a Acknowledger) { a.Pinged(n) })
	c.life.pinged.Store(n)
	c.life.unpinged = 0
	return n
}

// sentIsRead reports whether what was sent has to be taken for read, because the peer
// answers no pings.
func (c *Conn) sentIsRead() bool {
	return c.pinger == nil || c.life.silent.Load() && !c.life.answers.Load()
}

// The writer calls eventSent after every event of n bytes. It makes sure that the source
// learns what the peer has: from a pong if the peer answers pings, and otherwise from the
// fact that it was sent.
func (c *Conn) eventSent(n int) {
	c.life.unpinged += n
	first := c.life.pinged.Load() == 0
	if first && c.pinger != nil {
		c.life.expectAnswer(c)
	}
	if first || c.life.unpinged >= pingEvery || c.sentIsRead() {
		c.askAck()
	}
}

// WantAck says that the source waits for an acknowledgement. Once everything is sent, the
// writer pings the peer, however little it was.
func (c *Conn) WantAck() {
	c.life.wantAck.Store(true)
	c.Wake()
}

// The writer calls askAck to have everything acknowledged that it has sent. While maxPings
// wait for their pongs, the next pong makes it ask again.
func (c *Conn) askAck() {
	switch {
	case c.sentIsRead():
		if c.life.unpinged > 0 {
			c.mark()
		}
		c.acknowledged(c.life.pinged.Load())
		return
	case c.life.unpinged == 0:
		return
	}
	c.life.full.Store(true) // before the look, so that no pong is missed
	if c.life.pinged.Load()-c.life.answered.Load() >= maxPings {
		return
	}
	c.life.full.Store(false)
	// The next write notices a broken stream.
	_ = c.pinger.Ping(c.mark())
}

// expectAnswer gives the peer the probe's timeout to answer the first ping. A peer that
// does not answer is assumed to have read what was sent.
func (h *heartbeat) expectAnswer(c *Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.first = time.AfterFunc(c.opts.ProbeTimeout, func() {
		if !h.answers.Load() {
			h.silent.Store(true)
			c.WantAck()
		}
	})
}

// heartbeatLoop pings at every interval and closes the connection of a peer that answered
// before and has been silent for missedPings intervals. Silence proves nothing about a
// peer that never answered, nor while this side's reader does not read, because too many
// requests wait or because of Options.Hold.
func (c *Conn) heartbeatLoop() {
	defer c.life.stop()
	ticker := time.NewTicker(c.opts.PingInterval)
	defer ticker.Stop()
	var last, lastReads uint64
	missed := -1 // no ping precedes the first tick
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
		heard, reads := c.life.heard.Load()+c.pinger.Received(), c.life.reads.Load()
		listened := reads%2 == 1 && reads == lastReads // since the last tick
		if heard != last || !listened {
			last, lastReads, missed = heard, reads, 0
		} else {
			missed++
		}
		if missed >= missedPings && c.life.answers.Load() {
			c.log.Info("connection given up", "error", ErrSilent, "missed", missed)
			c.Close(transport.Reason{Code: transport.CodePolicy, Text: ErrSilent.Error()}, ErrSilent)
			return
		}
		c.ping()
	}
}

func (h *heartbeat) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first != nil {
		h.first.Stop()
	}
}

// ping writes a ping on a goroutine of its own, because the writer may be blocked.
func (c *Conn) ping() {
	if c.life.pinging.Swap(true) {
		return
	}
	c.start(func() {
		defer c.life.pinging.Store(false)
		_ = c.pinger.Ping(c.life.pinged.Load())
	})
}

// Probe asks the peer for a sign of life and reports whether one came within the probe's
// timeout. On a transport without pings the kernel knows whether the peer is there, and
// Probe reports whether its input has ended.
func (c *Conn) Probe(ctx context.Context) bool {
	if c.ctx.Err() != nil || c.inputEnded.Load() {
		return false
	}
	if c.pinger == nil {
		return true
	}
	sign, received := c.life.nextSign(), c.pinger.Received()
	c.ping()
	timeout := time.NewTimer(c.opts.ProbeTimeout)
	defer timeout.Stop()
	select {
	case <-sign:
		return true
	case <-c.ctx.Done():
		return false
	case <-ctx.Done():
		return true
	case <-timeout.C:
		return c.pinger.Received() != received
	}
}
