package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

var (
	errStopped = fmt.Errorf("the other end of the stream reads no more: %w", syscall.EPIPE)
	errHalf    = errors.New("the stream is closed for writing")
	errUnread  = errors.New("the stream was closed without a link, and the other end may not have read everything")
)

// Conn is one end of a stream. Any goroutine may call its methods at any time.
type Conn struct {
	id     [idSize]byte
	secret []byte
	keep   time.Duration   // without a link
	alive  context.Context // until the stream has ended
	kill   context.CancelFunc
	dials  bool          // this end makes the links
	owner  string        // at the end that accepts
	forget func()        // removes the stream from its server
	gone   chan struct{} // closed when the stream has ended, and its link

	// Held by Read and WriteTo, and by Write, so that each is called once at a time. Taken before mu.
	readers, writers sync.Mutex

	mu                 sync.Mutex
	readable, writable sync.Cond
	link               *link       // nil without one
	latest             *link       // or an earlier one, which may still be in use
	generation         uint64      // of latest
	expiry             *time.Timer // ends the stream

	out     buffer
	acked   int64 // the other end has read what is before
	high    int64 // what is before was sent on some link
	outDone bool  // nothing comes after out
	stopped bool  // the other program reads no more

	in     buffer
	inDone bool // nothing comes after in
	eof    bool // and the program knows

	confirmed func(n uint64) // see OnConfirm
	asked     []question     // in the order of Confirm

	closed  bool      // by the program
	waiting bool      // the program waits for the other
	unused  bool      // the end that dials may not know that the stream has begun
	left    time.Time // when the last link was lost
	ended   bool      // there will be no other link
	err     error     // why; nil if both programs have closed the stream
	code    Code      // what the other end is sent then
	tell    bool      // the other end must be sent it
}

func newConn(keep time.Duration) *Conn {
	c := &Conn{keep: keep, gone: make(chan struct{}), forget: func() {}}
	c.alive, c.kill = context.WithCancel(context.Background())
	c.readable.L, c.writable.L = &c.mu, &c.mu
	return c
}

// flag returns 1 for the number of the end of a direction.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (c *Conn) limit() int64    { return c.out.end + flag(c.outDone) } // of what can be sent
func (c *Conn) received() int64 { return c.in.end + flag(c.inDone) }
func (c *Conn) read() int64     { return c.in.start + flag(c.eof) }

// Read implements io.Reader. It returns io.EOF when the other program has closed its direction,
// and waits as long as the stream is without a link.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.readers.Lock()
	defer c.readers.Unlock()
	b, err := c.next()
	if err != nil {
		return 0, err
	}
	n := copy(p, b)
	c.consume(n)
	return n, nil
}

// WriteTo implements io.WriterTo. It spares the copy of Read.
func (c *Conn) WriteTo(w io.Writer) (written int64, err error) {
	c.readers.Lock()
	defer c.readers.Unlock()
	for {
		b, err := c.next()
		if err == io.EOF {
			return written, nil
		} else if err != nil {
			return written, err
		}
		n, err := w.Write(b)
		c.consume(n)
		written += int64(n)
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return written, err
		}
	}
}

// next waits for bytes, and returns some, which consume removes.
func (c *Conn) next() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return nil, net.ErrClosed
		case c.in.start < c.in.end:
			return c.in.frame(c.in.start)[headerSize:], nil
		case c.inDone:
			if !c.eof {
				c.eof = true
				c.acknowledge()
				c.settle()
			}
			return nil, io.EOF
		case c.ended:
			return nil, c.end()
		}
		c.readable.Wait()
	}
}

// consume removes n bytes that the program has read.
func (c *Conn) consume(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return // they were dropped
	}
	c.in.discard(c.in.start + int64(n))
	if l := c.link; l != nil && c.read()-l.acked >= ackEvery {
		c.acknowledge()
	}
}

// end returns the error of reads and writes after the end.
func (c *Conn) end() error {
	if c.err == nil {
		return errEnded
	}
	return c.err
}

// Write implements io.Writer. It returns when all bytes are retained, and waits for that while the
// other program has not read earlier ones. They are delivered unless the stream ends.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writers.Lock()
	defer c.writers.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return n, net.ErrClosed
		case c.outDone:
			return n, errHalf
		case c.stopped:
			return n, errStopped
		case c.ended:
			return n, c.end()
		case len(p) == 0:
			return n, nil
		}
		room := window - (c.out.end - c.acked)
		if room == 0 {
			c.writable.Wait()
			continue
		}
		m := copy(c.out.tail(), p[:min(int64(len(p)), room)])
		c.out.end += int64(m)
		p, n = p[m:], n+m
		c.kick()
	}
}

// CloseWrite ends the direction to the other end, which reads what was written and then io.EOF. It
// waits for a call of Write.
func (c *Conn) CloseWrite() error {
	c.writers.Lock()
	defer c.writers.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.ended {
		return net.ErrClosed
	}
	c.outDone = true
	c.kick()
	return nil
}

// Close ends both directions, and with them reads and writes that wait. It returns at once. The
// other end is still sent what was written, for as long as Keep says; but the end that dials
// makes no more links for that. To be sure, call CloseWrite and read up to io.EOF first.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed, c.outDone = true, true
	c.in.drop()
	c.eof = c.inDone
	c.readable.Broadcast()
	c.writable.Broadcast()
	if !c.ended {
		c.expire(c.keep)
	}
	c.acknowledge()
	c.settle()
	return nil
}

// Done is closed when the stream has ended, and with it the last link.
func (c *Conn) Done() <-chan struct{} { return c.gone }

// Err returns why the stream has ended: nil if both programs have closed it.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// SetWaiting says whether the program waits for the other one. A dead link is then noticed as early
// as with unacknowledged bytes.
func (c *Conn) SetWaiting(waiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = waiting
}

// Owner returns the owner that Serve was called with for the first link.
func (c *Conn) Owner() string { return c.owner }

// A question waits until the other program has read what is before a number.
type question struct {
	at int64
	n  uint64
}

// OnConfirm sets the function that is called for the numbers of Confirm. It must not block. OnConfirm
// must be called before Confirm.
func (c *Conn) OnConfirm(f func(n uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.confirmed = f
}

// Confirm asks the other end to confirm that its program has read everything written so far, and
// then calls the function of OnConfirm with n. That also proves that the other end lives. Without a
// link, it waits for one. Another call with the same n replaces the last one.
func (c *Conn) Confirm(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.closed {
		return
	}
	if last := len(c.asked) - 1; last >= 0 && c.asked[last].n == n {
		c.asked = c.asked[:last]
	}
	c.asked = append(c.asked, question{c.out.end, n})
	if c.link != nil {
		c.link.ping = true
		c.kick()
	}
}

// The following are called with c.mu held.

// takeConfirmed appends to numbers those that a frame of the other end has confirmed.
func (c *Conn) takeConfirmed(numbers []uint64) []uint64 {
	for len(c.asked) > 0 && c.asked[0].at <= c.acked && !c.stopped {
		numbers = append(numbers, c.asked[0].n)
		c.asked = c.asked[1:]
	}
	return numbers
}

// settle ends the stream if nobody needs it any more.
func (c *Conn) settle() {
	switch {
	case !c.closed:
	case c.acked == c.limit() || c.stopped:
		c.finish(nil, 0, true)
	case c.dials && c.link == nil:
		c.finish(errUnread, 0, false)
	}
}

// expire makes the stream end after its time.
func (c *Conn) expire(keep time.Duration) {
	c.persist()
	var timer *time.Timer
	timer = time.AfterFunc(keep, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.expiry != timer:
		case c.link == nil:
			c.finish(Expired, Expired, true)
		case c.closed: // and the other program does not read
			c.finish(Ended, Ended, true)
		}
	})
	c.expiry = timer
}

// persist stops expire.
func (c *Conn) persist() {
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
}

// finish ends the stream. tell says whether to send the other end a code.
func (c *Conn) finish(err error, code Code, tell bool) {
	if c.ended {
		return
	}
	c.ended, c.err, c.code, c.tell = true, err, code, tell
	c.kill()
	c.forget()
	c.persist()
	c.readable.Broadcast()
	c.writable.Broadcast()
	l := c.link
	switch {
	case l == nil:
		close(c.gone)
	case !tell:
		c.fail(l, errEnded)
	default:
		c.kick()
		l.timer.Stop()
		l.timer = time.AfterFunc(farewell, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.fail(l, errEnded)
		})
	}
}

// attach makes l the link of the stream. The other end has received what is before a number. The
// caller may write to l until it calls run, which it must.
func (c *Conn) attach(l *link, received int64) error {
	switch {
	case c.ended:
		return c.end()
	case c.stopped:
		received = c.out.end // it needs nothing
	case received < c.acked || received > c.high:
		c.finish(errInvalid, Violated, true)
		return errInvalid
	}
	c.link, c.latest, l.sent = l, l, received
	l.last, l.timer = time.Now(), time.AfterFunc(interval, func() { c.tick(l) })
	if !c.closed {
		c.persist()
	}
	return nil
}

// detach removes the link of the stream.
func (c *Conn) detach() {
	l := c.link
	c.link, c.left = nil, time.Now()
	switch {
	case c.ended:
		close(c.gone)
	case c.closed: // expires already
	case c.unused:
		c.expire(silence)
	case !c.dials && l.keep > 0 && l.err != errSilent: // the relay has closed it
		c.expire(min(c.keep, l.keep))
	case !c.dials:
		c.expire(c.keep)
	}
	c.settle()
}
