package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"execserver/transport"
)

// missedPings is after how many unanswered pings in a row a peer that has answered one before is
// given up.
const missedPings = 3

// pingEvery is the number of bytes of events between two pings, whose pongs acknowledge
// them. At most maxPings wait for their pongs: with pingEvery that is as much
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

// heartbeat records signs of life of the peer. Pings for acknowledgement are numbered. A
// pong carries the number of its ping, so it also acknowledges what preceded the ping.
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

// The reader calls listen before and after each read.
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

// expectAnswer gives the peer the probe's timeout to answer the first ping. A peer that
// does not answer is assumed to read everything that is sent.
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

func (h *heartbeat) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first != nil {
		h.first.Stop()
	}
}

// heartbeatLoop pings at every interval and closes the connection of a peer that answered
// before and has been silent for missedPings intervals. Silence proves nothing about a
// peer that never answered, nor while this side's reader does not read, because too many
// requests wait or because of Options.Pause.
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

// The reader calls pong for every pong.
func (c *Conn) pong(n uint64) {
	c.life.answers.Store(true)
	c.life.hear()
	if n > c.life.pinged.Load() {
		return // no ping had this number
	}
	c.acknowledged(n)
	if c.life.full.Swap(false) {
		c.WantAck()
	}
}

// Probe asks the peer for a sign of life and reports whether one came within the probe's
// timeout. On a transport without pings the kernel reports the end of the peer, and Probe
// returns false if its input has ended.
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

// WantAck requests an acknowledgement for a source. Once everything is sent, the writer pings
// the peer, even if fewer than pingEvery bytes were sent.
func (c *Conn) WantAck() {
	c.life.wantAck.Store(true)
	c.Wake()
}

// The writer calls eventSent after every event of n bytes. It asks for a pong, which tells the
// source what the peer has received. From a peer that answers no pings, what was sent counts as
// received.
func (c *Conn) eventSent(n int) {
	c.life.unpinged += n
	first := c.life.pinged.Load() == 0
	if first && c.pinger != nil && !c.opts.Lasting {
		c.life.expectAnswer(c)
	}
	if first || c.life.unpinged >= pingEvery || c.sentIsRead() {
		c.askAck()
	}
}

// askAck asks the peer to acknowledge everything that was sent so far. Only the writer calls it.
// While maxPings wait for their pongs, the next pong makes it ask again.
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
	c.life.full.Store(true) // before reading answered, so that no pong is missed
	if c.life.pinged.Load()-c.life.answered.Load() >= maxPings {
		return
	}
	c.life.full.Store(false)
	// The next write notices a broken stream.
	_ = c.pinger.Ping(c.mark())
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

// acknowledged notifies the sources that the peer has received everything before ping n.
func (c *Conn) acknowledged(n uint64) {
	for before := c.life.answered.Load(); before < n; before = c.life.answered.Load() {
		if c.life.answered.CompareAndSwap(before, n) {
			break
		}
	}
	c.out.eachAcknowledger(func(a Acknowledger) { a.Acknowledged(n) })
}

// sentIsRead reports whether messages count as received once they are sent, because the peer
// does not answer pings.
func (c *Conn) sentIsRead() bool {
	return c.pinger == nil || c.life.silent.Load() && !c.life.answers.Load()
}
