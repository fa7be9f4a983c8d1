package stream

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A frame is a header and a payload:
//
//	1 byte    flags
//	3 bytes   size of the payload; the code in the last frame
//	8 bytes   the sender has read what is before this number, as in c.read
//
// The numbers of its bytes follow from those before it on the same link.
const headerSize = 12

const (
	flagDone = 1 << iota // the payload is the end of this direction
	flagPing             // the other end must send a frame
	flagStop             // the program at this end reads no more
	flagEnd              // the stream has ended; the last frame

	flagsKnown = 1<<iota - 1
)

// A link carries frames. Whoever notices its end calls fail, which closes it.
type link struct {
	rwc   io.ReadWriteCloser
	close func() error  // rwc, once
	heard atomic.Bool   // something was received since the last tick
	work  chan struct{} // wakes writeFrames
	down  chan struct{} // closed by fail
	users sync.WaitGroup
	gone  chan struct{} // closed when nothing uses the link, or memory on its behalf

	// For the goroutine that reads.
	ahead []byte        // was read and is not used yet; in small
	small [4 << 10]byte // headers, and small payloads with them

	// Guarded by mu of the stream.
	err    error            // why the link has ended
	empty  [headerSize]byte // a frame without payload
	pinned int64            // what is from here on is retained for the frame that is being written
	sent   int64            // what is before was sent on this link, or received on others
	acked  int64            // the last acknowledgement that was sent
	owes   bool             // the other end has not been shown that its last bytes have come
	answer bool             // a frame must be sent
	ping   bool             // and be a ping
	asked  time.Time        // when a ping was due that nothing has answered; else zero
	last   time.Time        // when something was heard, to the precision of ticks
	stop   bool             // flagStop was sent
	end    bool             // flagEnd was sent
	timer  *time.Timer      // the next tick
	keep   time.Duration    // of the stream if a relay closes the link; 0: as after any other end
}

func newLink(rwc io.ReadWriteCloser) *link {
	return &link{
		rwc: rwc, close: sync.OnceValue(rwc.Close), pinned: math.MaxInt64,
		work: make(chan struct{}, 1), down: make(chan struct{}), gone: make(chan struct{}),
	}
}

// read reads from the link.
func (l *link) read(p []byte) (int, error) {
	n, err := l.rwc.Read(p)
	if n > 0 {
		l.heard.Store(true)
	}
	return n, err
}

// take returns the next n bytes, which are few, until the next call. It may read more of small
// frames, so that they cost one system call.
func (l *link) take(n int) ([]byte, error) {
	for len(l.ahead) < n {
		have := copy(l.small[:], l.ahead)
		l.ahead = l.small[:have]
		m, err := l.read(l.small[have:])
		l.ahead = l.small[:have+m]
		if m == 0 && err != nil {
			return nil, err
		}
	}
	b := l.ahead[:n]
	l.ahead = l.ahead[n:]
	return b, nil
}

// fill reads up to len(p) bytes to p, and the header behind them to the capacity of p if it has
// arrived, so that a large frame costs one system call as well.
func (l *link) fill(p []byte) (int, error) {
	if len(l.ahead) > 0 {
		n := copy(p, l.ahead)
		l.ahead = l.ahead[n:]
		return n, nil
	}
	n, err := l.read(p[:min(len(p)+headerSize, cap(p))])
	if n > len(p) {
		l.ahead = l.small[:copy(l.small[:], p[len(p):n])]
		n = len(p)
	}
	if n > 0 {
		err = nil // comes again
	}
	return n, err
}

// run serves an attached link to its end, and returns why it has ended.
func (c *Conn) run(l *link) error {
	c.mu.Lock()
	if l.err == nil {
		l.users.Go(func() { c.writeFrames(l) })
		l.answer = true // says at once whether this end has stopped or ended
		l.ping = len(c.asked) > 0
		c.kick()
	}
	c.mu.Unlock()
	err := c.readFrames(l)
	if err == errInvalid {
		_, _ = io.Copy(io.Discard, l.rwc) // the other end is sent why
	}
	c.mu.Lock()
	c.fail(l, err)
	c.mu.Unlock()
	l.users.Wait()
	close(l.gone)
	return l.err
}

// readFrames never waits for anything but the link. If both ends waited for the other to read,
// neither would.
func (c *Conn) readFrames(l *link) error {
	var confirmed []uint64
	for {
		for _, n := range confirmed {
			c.confirmed(n)
		}
		head, err := l.take(headerSize)
		if err != nil {
			return fmt.Errorf("read from the link: %w", err)
		}
		flags, n, ack := head[0], int(binary.BigEndian.Uint32(head)&0xffffff), binary.BigEndian.Uint64(head[4:])
		c.mu.Lock()
		err = c.header(l, flags, n, ack)
		for err == nil && n > 0 {
			tail := c.in.tail()
			c.mu.Unlock()
			var m int
			m, err = l.fill(tail[:min(n, len(tail))])
			c.mu.Lock()
			c.in.end += int64(m)
			n -= m
			l.owes = true
			if c.closed {
				c.in.drop()
			}
			c.readable.Broadcast()
		}
		if err == nil && flags&flagDone != 0 {
			c.inDone = true
			c.eof = c.closed
			c.acknowledge()
			c.readable.Broadcast()
		}
		confirmed = c.takeConfirmed(confirmed[:0])
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// The following are called with c.mu held, except tick.

// header acts on the header of a frame.
func (c *Conn) header(l *link, flags byte, n int, ack uint64) error {
	switch {
	case l.err != nil:
		return l.err
	case !c.permits(l, flags, n, int64(ack)):
		c.finish(errInvalid, Violated, true)
		return errInvalid
	case flags&flagEnd != 0:
		var err error
		if n != 0 {
			err = Code(n)
		}
		c.finish(err, 0, false)
		return errEnded
	}
	c.unused = false
	if !c.stopped && (flags&flagStop != 0 || int64(ack) > c.acked) {
		c.stopped, c.acked = flags&flagStop != 0, int64(ack)
		c.release(l)
		c.writable.Broadcast()
	}
	c.settle()
	if flags&flagPing != 0 {
		c.acknowledge()
	}
	return nil
}

// permits reports whether the other end may send a frame with this header.
func (c *Conn) permits(l *link, flags byte, n int, ack int64) bool {
	switch {
	case flags&^flagsKnown != 0:
		return false
	case flags&flagEnd != 0:
		// Without a code, this end has read everything, or does not want to.
		return n <= math.MaxUint8 && (n != 0 || c.eof || c.closed)
	case n > chunkSize, c.received()+int64(n)-c.read() > window, c.inDone && (n > 0 || flags&flagDone != 0):
		return false
	}
	return c.stopped || ack >= c.acked && ack <= l.sent
}

// release releases what need not be retained.
func (c *Conn) release(l *link) {
	n := min(c.out.end, l.pinned)
	if !c.stopped {
		n = min(n, c.acked)
	}
	c.out.discard(n)
}

// kick makes writeFrames send what is due.
func (c *Conn) kick() {
	if l := c.link; l != nil {
		select {
		case l.work <- struct{}{}:
		default:
		}
	}
}

// acknowledge sends a frame.
func (c *Conn) acknowledge() {
	if c.link != nil {
		c.link.answer = true
		c.kick()
	}
}

// writeFrames sends what is due. No call of Write does, because Close could not end that.
func (c *Conn) writeFrames(l *link) {
	for {
		select {
		case <-l.work:
		case <-l.down:
			return
		}
		c.mu.Lock()
		for l.err == nil && c.due(l) {
			c.write(l)
		}
		c.mu.Unlock()
	}
}

// due reports whether a frame should be sent.
func (c *Conn) due(l *link) bool {
	switch {
	case l.end:
		return false
	case c.ended:
		return c.tell
	}
	return l.answer || l.ping || c.closed && !l.stop || l.sent < c.limit() && !c.stopped
}

// write sends one frame. It writes from the memory that retains the payload, with the header in
// place of the bytes before it, which it restores. Meanwhile release keeps what is pinned.
func (c *Conn) write(l *link) {
	frame, flags, n := l.empty[:], byte(0), 0
	if l.sent < c.out.end && !c.stopped && !c.ended {
		frame = c.out.frame(l.sent)
		n = len(frame) - headerSize
	}
	saved := [headerSize]byte(frame)
	l.pinned = l.sent
	l.sent += int64(n)
	if c.outDone && l.sent == c.out.end && !c.stopped {
		flags |= flagDone
		l.sent++
	}
	if l.ping {
		flags |= flagPing
	}
	if c.closed {
		flags |= flagStop
		l.stop = true
	}
	if c.ended {
		flags, n = flagEnd, int(c.code)
		l.end = true
	}
	l.owes, l.answer, l.ping, l.acked = false, false, false, c.read()
	c.high = max(c.high, l.sent)
	binary.BigEndian.PutUint32(frame, uint32(flags)<<24|uint32(n))
	binary.BigEndian.PutUint64(frame[4:], uint64(l.acked))
	c.mu.Unlock()
	_, err := l.rwc.Write(frame)
	c.mu.Lock()
	copy(frame, saved[:])
	l.pinned = math.MaxInt64
	c.release(l)
	if err != nil {
		c.fail(l, fmt.Errorf("write to the link: %w", err))
	}
}

// tick looks after a link every interval.
func (c *Conn) tick(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.err != nil || c.ended {
		return
	}
	if l.heard.Swap(false) {
		l.asked, l.last = time.Time{}, time.Now()
	}
	expects := c.waiting || c.unused || len(c.asked) > 0 || c.acked < c.limit() && !c.stopped
	switch {
	case !l.asked.IsZero():
		if elapsed(l.asked) >= silence {
			c.fail(l, errSilent)
			return
		}
	case expects || elapsed(l.last) >= idle:
		l.asked, l.ping = time.Now(), true
		c.kick()
	case l.owes:
		// The other end may wait for this behind the rest of a large payload.
		c.acknowledge()
	}
	l.timer.Reset(interval)
}

// elapsed returns the time since t. The clock of time.Since may stand while the machine sleeps.
func elapsed(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}

// fail ends a link.
func (c *Conn) fail(l *link, err error) {
	if l.err != nil {
		return
	}
	l.err = err
	close(l.down)
	if l.timer != nil {
		l.timer.Stop()
	}
	l.users.Go(func() { _ = l.close() })
	if c.link == l {
		c.detach()
	}
}
