package forward

import (
	"os"
	"sync"
	"time"
)

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
