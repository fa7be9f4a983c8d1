package natstransport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/transport"
)

// Causes of the end of a connection.
var (
	// ErrGap is in the error of Read and Write after a frame did not arrive.
	ErrGap = errors.New("a message is missing")
	// ErrLost is in the error of Read and Write after the peer or the connection to NATS was
	// lost. It wraps syscall.ETIMEDOUT, because the peer has not closed the connection and may
	// not know that it has ended.
	ErrLost = fmt.Errorf("the peer is not reachable: %w", syscall.ETIMEDOUT)
)

// maxControls bounds the pings and pongs that wait for Read.
const maxControls = 256

// closeTimeout bounds how long Close waits for the NATS connection to take its frame.
const closeTimeout = time.Second

// Conn is one end of a connection over NATS. It implements transport.Pinger,
// transport.Limited, transport.Growing and transport.BinaryCarrier.
type Conn struct {
	end    *endpoint
	key    string // among the connections of end
	out    string // the subject of frames to the peer; guarded by sendMu
	remote string
	hello  []byte
	limit  int64 // of a message
	onPong func(uint64)
	onPing func(uint64)      // nil answers pings
	onGrow func(int64) error // nil allows all

	received atomic.Uint64
	closing  atomic.Bool
	done     chan struct{} // closed when the connection has ended
	closed   sync.Once
	sub      *nats.Subscription // of a Dialer's connection: its frames; nil otherwise

	writeMu sync.Mutex // one Write at a time; held while there is no credit

	sendMu sync.Mutex // guards the numbers of frames, and is held while one is published
	number uint64     // of the last frame sent
	spoke  bool       // since the last tick

	// Only Read uses these.
	rest     []byte // of the frame being read
	consumed int64  // bytes of the stream
	told     int64  // of consumed, what the peer knows
	bound    int64  // the argument of LimitTotal; 0 if none
	total    int64  // remaining bytes; see LimitTotal

	mu       sync.Mutex
	arrived  chan struct{} // has an element if queue, or cause, may have changed
	granted  chan struct{} // has an element if room may have grown
	queue    []queued
	controls int    // pings and pongs in queue
	waiting  int64  // bytes of the stream in queue
	next     uint64 // number of the next frame
	silent   int    // ticks without a frame
	cause    error  // the cause of the end; nil while the connection is open
	room     int64  // bytes that may still be sent
	allowed  int64  // bytes of the stream that the peer has ever made room for
	window   int64  // bytes of the stream that may wait here
	theirs   int64  // window of the peer
	segment  int    // bytes of the stream in a frame; set before the first Write
}

// queued is a frame that waits for Read.
type queued struct {
	kind byte
	body []byte
}

// newConn returns a connection that may not send before open.
func newConn(e *endpoint, key, out, remote string, hello []byte) *Conn {
	return &Conn{
		end: e, key: key, out: out, remote: remote, hello: hello,
		limit: e.opts.MaxMessageBytes, window: e.opts.Window, next: 1,
		done: make(chan struct{}), arrived: make(chan struct{}, 1), granted: make(chan struct{}, 1),
	}
}

// address sets the subject of frames to the peer.
func (c *Conn) address(out string) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.out = out
}

// open sets the initial credit, which is the window of the peer.
func (c *Conn) open(window int64) {
	window = min(window, maxWindow)
	c.mu.Lock()
	defer c.mu.Unlock()
	// Two segments must fit, or each would wait for the credit of the last one.
	c.segment = int(min(maxSegment, window/2))
	c.theirs, c.room, c.allowed = window, window, window
}

func wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Hello returns what the dialer sent with its request. The caller must not change it.
func (c *Conn) Hello() []byte { return c.hello }

// Done is closed when the connection has ended. Messages received before can still be read,
// unless Close was called.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Remote implements transport.Conn.
func (c *Conn) Remote() string { return c.remote }

// AcceptBinary implements transport.BinaryCarrier. It does nothing: all messages are framed
// alike.
func (c *Conn) AcceptBinary() {}

// LimitTotal implements transport.Limited.
func (c *Conn) LimitTotal(bytes int64) { c.bound, c.total = bytes, bytes }

// OnGrow implements transport.Growing.
func (c *Conn) OnGrow(f func(bytes int64) error) { c.onGrow = f }

// Received implements transport.Pinger.
func (c *Conn) Received() uint64 { return c.received.Load() }

// OnPong implements transport.Pinger.
func (c *Conn) OnPong(f func(uint64)) { c.onPong = f }

// OnPing makes Read call f for every ping of the peer instead of answering it. A relay forwards
// the ping to its other side, and calls Pong with the answer. OnPing must be called before the
// first Read, and f must not block for long.
func (c *Conn) OnPing(f func(uint64)) { c.onPing = f }

// Ping implements transport.Pinger.
func (c *Conn) Ping(payload uint64) error { return c.sendNumber(framePing, payload) }

// Pong answers a ping that was passed to the function of OnPing.
func (c *Conn) Pong(payload uint64) error { return c.sendNumber(framePong, payload) }

func (c *Conn) sendNumber(kind byte, payload uint64) error {
	var frame [headBytes + 8]byte
	binary.BigEndian.PutUint64(frame[headBytes:], payload)
	return c.send(kind, frame[:])
}

// send publishes a frame, whose first headBytes are reserved for the head. It does not retain
// the frame.
func (c *Conn) send(kind byte, frame []byte) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if err := c.ended(); err != nil {
		return err
	}
	return c.publish(kind, frame)
}

// publish is like send, but also works after the end. The caller must hold sendMu.
func (c *Conn) publish(kind byte, frame []byte) error {
	c.number++
	c.spoke = true
	putHead(frame, kind, c.number)
	if err := c.end.nc.Publish(c.out, frame); err != nil {
		err = fmt.Errorf("%w: %w", ErrLost, err)
		c.finish(err)
		return err
	}
	return nil
}

// ended returns the error of a Write after the end, or nil before.
func (c *Conn) ended() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	if c.closing.Load() {
		return transport.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// finish ends the connection for a cause, and reports whether it was still open. Messages
// received before can still be read.
func (c *Conn) finish(cause error) (first bool) {
	c.closed.Do(func() {
		first = true
		c.mu.Lock()
		c.cause = cause
		c.mu.Unlock()
		close(c.done)
		wake(c.arrived)
		c.end.remove(c)
		if c.sub != nil {
			_ = c.sub.Unsubscribe() // fails only if the connection to NATS is gone
		}
	})
	return first
}

// fail ends the connection for a cause on this side, and notifies the peer. It does not block.
func (c *Conn) fail(cause error) {
	if c.finish(cause) {
		c.sendClose(transport.Reason{Code: transport.CodeGoingAway, Text: cause.Error()})
	}
}

// sendClose sends the reason for the end to the peer, on a goroutine. sent is closed when NATS
// has accepted or refused the frame.
func (c *Conn) sendClose(reason transport.Reason) (sent <-chan struct{}) {
	done := make(chan struct{})
	started := c.end.start(func() { // ends soon, because the NATS connection bounds the time of a write
		defer close(done)
		c.sendMu.Lock()
		defer c.sendMu.Unlock()
		_ = c.publish(frameClose, appendReason(make([]byte, headBytes), reason)) // the peer notices the end without it
	})
	if !started {
		close(done)
	}
	return done
}

// Close implements transport.Conn.
func (c *Conn) Close(reason transport.Reason) error {
	if c.closing.Swap(true) || !c.finish(transport.ErrClosed) {
		return nil
	}
	select {
	case <-c.sendClose(reason):
	case <-time.After(closeTimeout):
	}
	return nil
}
