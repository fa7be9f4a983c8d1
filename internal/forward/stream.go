package forward

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"execserver/protocol"
)

// Stream is this side's end of one forwarded connection. It has the methods of a net.Conn
// except those about addresses, with the meaning that they have for a TCP connection.
//
// A stream is over when both sides have ended their direction, when either side has reset it,
// or when the connection has ended.
type Stream struct {
	owner *Streams
	id    string
	over  chan struct{} // closed when the stream is over

	// guarded by owner.mu
	readable, writable sync.Cond // on owner.mu
	reading, writing   deadline

	in       bytes.Buffer // received and not read yet
	window   int64        // bytes that the peer may still send
	consumed int64        // bytes read, for which the peer has not received new credit
	inEnded  bool         // the peer sends no more data

	out      bytes.Buffer // written and not sent yet, at most maxChunk
	credit   int64        // bytes that this side may send
	outEnded bool         // nothing more is written
	endSent  bool
	reset    *string // to send when everything before it is sent

	closed  bool  // Close or Reset was called
	failure error // the reason if the stream was over before its end
	linger  *time.Timer
	onFail  func(error)
	queued  bool // it is in owner.ready
}

// ResetError reports that the other side has reset the stream. It matches
// syscall.ECONNRESET.
type ResetError struct{ Message string }

func (e *ResetError) Error() string {
	if e.Message == "" {
		return "connection reset by the other side"
	}
	return "connection reset by the other side: " + e.Message
}

// Is makes the error match syscall.ECONNRESET.
func (e *ResetError) Is(target error) bool { return target == syscall.ECONNRESET }

// lingerTimeout is how long a closed stream may take to send what was written.
const lingerTimeout = 10 * time.Second

// closedText is the message of a reset after Close, when this side no longer reads.
const closedText = "closed"

func newStream(s *Streams, id string) *Stream {
	stream := &Stream{owner: s, id: id, over: make(chan struct{}), window: Window}
	stream.readable.L, stream.writable.L = &s.mu, &s.mu
	return stream
}

// Allow adds the credit of the answer to tcp/open. If it exceeds the limit, Allow returns an
// error, and the caller must end the stream.
func (s *Stream) Allow(credit protocol.TCPCredit) error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	return s.creditLocked(int64(min(credit, protocol.MaxTCPCredit+1)))
}

// Over returns a channel that is closed when the stream is over.
func (s *Stream) Over() <-chan struct{} { return s.over }

// OnFail sets a function that is called when the other side has reset the stream, with a
// *ResetError, or when the connection has ended. It is called at once if that has happened. f
// must not block.
func (s *Stream) OnFail(f func(error)) {
	s.owner.mu.Lock()
	s.onFail = f
	failure := s.failure
	s.owner.mu.Unlock()
	if failure != nil {
		f(failure)
	}
}

// Forget ends a stream after tcp/open has failed, without notifying the peer.
func (s *Stream) Forget() {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.closeLocked()
	s.forgetLocked()
}

// Read implements net.Conn. Data received before a reset can still be read.
func (s *Stream) Read(p []byte) (int, error) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, net.ErrClosed
		case s.reading.passed:
			return 0, errTimeout
		case len(p) == 0:
			return 0, nil
		case s.in.Len() > 0:
			n, _ := s.in.Read(p)
			s.consumedLocked(n)
			return n, nil
		case s.inEnded:
			return 0, io.EOF
		case s.failure != nil:
			return 0, s.failure
		}
		s.readable.Wait()
	}
}

// consumedLocked gives the peer credit for what was read.
func (s *Stream) consumedLocked(n int) {
	if s.in.Len() == 0 && s.in.Cap() > maxChunk {
		s.in = bytes.Buffer{}
	}
	s.consumed += int64(n)
	s.queueLocked()
}

// Write implements net.Conn. It returns when the data is buffered. The buffer is bounded.
func (s *Stream) Write(p []byte) (n int, err error) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	for {
		switch {
		case s.closed:
			return n, net.ErrClosed
		case s.failure != nil:
			return n, s.failure
		case s.outEnded:
			return n, errEnded
		case s.writing.passed:
			return n, errTimeout
		case len(p) == 0:
			return n, nil
		}
		if some := min(len(p), maxChunk-s.out.Len()); some > 0 {
			s.out.Write(p[:some])
			p, n = p[some:], n+some
			s.queueLocked()
			continue
		}
		s.writable.Wait()
	}
}

// CloseWrite ends the direction to the other side.
func (s *Stream) CloseWrite() error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case s.failure != nil:
		return s.failure
	}
	s.endLocked()
	return nil
}

func (s *Stream) endLocked() {
	s.outEnded = true
	s.writable.Broadcast()
	s.queueLocked()
}

// Close ends both directions without waiting. Buffered data is still sent, for at most
// lingerTimeout.
func (s *Stream) Close() error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.closeLocked()
	s.endLocked()
	if !s.inEnded || s.in.Len() > 0 {
		text := closedText
		s.reset = &text
	}
	s.in = bytes.Buffer{}
	if s.aliveLocked() {
		s.linger = time.AfterFunc(lingerTimeout, func() { s.Reset("the data before its end was not accepted in time") })
	}
	return nil
}

// Reset ends the stream at once, and discards buffered data.
func (s *Stream) Reset(message string) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.closeLocked()
	s.in, s.out = bytes.Buffer{}, bytes.Buffer{}
	s.outEnded, s.endSent = true, true // nothing before the reset
	s.reset = &message
	s.queueLocked()
}

// Fail ends the stream with a reset after the buffered data.
func (s *Stream) Fail(message string) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.closeLocked()
	s.in = bytes.Buffer{}
	if s.reset == nil {
		s.reset = &message
	}
	s.queueLocked()
}

func (s *Stream) closeLocked() {
	s.closed = true
	s.reading.clear()
	s.writing.clear()
	s.readable.Broadcast()
	s.writable.Broadcast()
}

// aliveLocked reports whether the stream is not over.
func (s *Stream) aliveLocked() bool { return s.owner.open[s.id] == s }

// forgetLocked records that the stream is over.
func (s *Stream) forgetLocked() {
	if !s.aliveLocked() {
		return
	}
	delete(s.owner.open, s.id)
	if s.linger != nil {
		s.linger.Stop()
	}
	close(s.over)
}

// failLocked ends the stream because of the other side or the connection. The caller must call
// the result without the lock.
func (s *Stream) failLocked(err error) (callback func()) {
	s.failure = err
	s.out = bytes.Buffer{}
	s.forgetLocked()
	s.readable.Broadcast()
	s.writable.Broadcast()
	if f := s.onFail; f != nil {
		return func() { f(err) }
	}
	return func() {}
}

// queueLocked queues the stream for AppendEvent if it has a notification to send.
func (s *Stream) queueLocked() {
	if !s.queued && s.aliveLocked() && s.hasNextLocked() {
		s.queued = true
		s.owner.ready = append(s.owner.ready, s)
		s.owner.wake()
	}
}

// owesCreditLocked reports whether to give the peer more credit. Small amounts are not worth a
// notification each, and the peer can use the rest of its credit meanwhile.
func (s *Stream) owesCreditLocked() bool {
	return s.consumed >= Window/4 && !s.inEnded && !s.closed
}

func (s *Stream) hasNextLocked() bool {
	return s.owesCreditLocked() || s.out.Len() > 0 && s.credit > 0 ||
		s.out.Len() == 0 && (s.outEnded && !s.endSent || s.reset != nil)
}

// appendNextLocked appends the stream's next notification, if any.
func (s *Stream) appendNextLocked(msg []byte) (_ []byte, ok bool) {
	switch {
	case !s.aliveLocked() || !s.hasNextLocked():
		return msg, false
	case s.owesCreditLocked():
		msg = protocol.AppendTCPCredit(msg, protocol.TCPMoreCredit{StreamID: s.id, Bytes: protocol.TCPCredit(s.consumed)})
		s.window += s.consumed
		s.consumed = 0
	case s.out.Len() > 0:
		chunk := s.out.Next(int(min(int64(s.out.Len()), s.credit)))
		if data := (protocol.TCPData{StreamID: s.id, Chunk: chunk}); s.owner.binary() {
			msg = protocol.AppendBinaryTCPData(msg, data)
		} else {
			msg = protocol.AppendTCPData(msg, data)
		}
		s.credit -= int64(len(chunk))
		s.writable.Broadcast()
	case s.outEnded && !s.endSent:
		msg = protocol.AppendTCPEnd(msg, protocol.TCPEnd{StreamID: s.id})
		s.endSent = true
		if s.inEnded && s.reset == nil {
			s.forgetLocked()
		}
	default:
		msg = protocol.AppendTCPReset(msg, protocol.TCPReset{StreamID: s.id, Message: *s.reset})
		s.forgetLocked()
	}
	return msg, true
}

// receiveLocked adds data of the peer.
func (s *Stream) receiveLocked(chunk []byte) error {
	switch {
	case s.inEnded:
		return fmt.Errorf("stream `%s` has ended", s.id)
	case int64(len(chunk)) > s.window:
		return fmt.Errorf("stream `%s`: %d bytes, but there is credit for %d", s.id, len(chunk), s.window)
	}
	s.window -= int64(len(chunk))
	if !s.closed {
		s.in.Write(chunk)
		s.readable.Broadcast()
	}
	return nil
}

// creditLocked lets this side send more.
func (s *Stream) creditLocked(n int64) error {
	if s.credit+n > protocol.MaxTCPCredit {
		return fmt.Errorf("stream `%s`: a credit of %d bytes, the limit is %d", s.id, s.credit+n, protocol.MaxTCPCredit)
	}
	s.credit += n
	s.queueLocked()
	return nil
}

// receiveEndLocked records that the peer sends no more data.
func (s *Stream) receiveEndLocked() error {
	if s.inEnded {
		return fmt.Errorf("stream `%s` has ended", s.id)
	}
	s.inEnded = true
	s.readable.Broadcast()
	if s.endSent && s.reset == nil {
		s.forgetLocked()
	}
	return nil
}

var errEnded = errors.New("write after CloseWrite")

// errTimeout is the error of a Read or Write whose deadline has passed. Its method Timeout
// returns true.
var errTimeout = os.ErrDeadlineExceeded

// deadline is a deadline for one direction of a stream, guarded by the lock of the
// stream.
type deadline struct {
	timer  *time.Timer
	number int // of calls of set, so that a timer that fires late has no effect
	passed bool
}

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.setLocked(&s.reading, &s.readable, t)
	s.setLocked(&s.writing, &s.writable, t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.setLocked(&s.reading, &s.readable, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.setLocked(&s.writing, &s.writable, t)
	return nil
}

// setLocked sets a deadline; the zero time means none.
func (s *Stream) setLocked(d *deadline, waiting *sync.Cond, t time.Time) {
	d.clear()
	if s.closed || t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		waiting.Broadcast()
		return
	}
	number := d.number
	d.timer = time.AfterFunc(left, func() {
		s.owner.mu.Lock()
		defer s.owner.mu.Unlock()
		if d.number == number {
			d.passed = true
			waiting.Broadcast()
		}
	})
}

// clear removes the deadline.
func (d *deadline) clear() {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.passed = nil, false
	d.number++
}
