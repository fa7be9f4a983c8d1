package process

import (
	"os"
	"sync"
	"sync/atomic"

	"execserver/internal/output"
)

// stream reads one output of a child into the log.
type stream struct {
	file *os.File
	to   *output.Writer
	most *outputLimit // nil: none

	drained chan struct{} // closed when what the leader wrote is in the log
	once    sync.Once     // closes drained
	ended   chan struct{} // closed at the end of the stream
	order   atomic.Int32  // the reader's latest order; see below
}

// The orders of drain and finish to a stream's reader; a later one includes the earlier.
const (
	orderRead   = iota
	orderDrain  // close drained once the present content has been read
	orderFinish // the same, and then end
)

func newStream(to *output.Writer, file *os.File, most *outputLimit) *stream {
	return &stream{
		file: file, to: to, most: most,
		drained: make(chan struct{}), ended: make(chan struct{}),
	}
}

// drain asks the reader to close drained when everything that the stream holds now is in
// the log.
func (s *stream) drain() { s.interrupt(orderDrain) }

// finish asks the reader to read what the stream holds now and then to end it, no matter
// who still has it open.
func (s *stream) finish() { s.interrupt(orderFinish) }

// run reads until the end of the stream, or until finish. When the process closes
// before, the writer goes on with the background log.
func (s *stream) run() {
	defer close(s.ended)
	defer s.markDrained()
	for {
		room := s.to.WaitRoom()
		if room == 0 {
			return
		}
		n, interrupted, err := s.read(room)
		if n > 0 {
			s.commit(n)
		}
		switch {
		case interrupted:
			order := s.order.Load()
			if !s.readHeld() {
				return
			}
			s.markDrained()
			if order == orderFinish {
				return
			}
		case err != nil:
			return // a terminal whose last holder is gone gives EIO
		}
	}
}

// open reports whether the stream has not ended.
func (s *stream) open() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

func (s *stream) markDrained() { s.once.Do(func() { close(s.drained) }) }

// readHeld reads at least what the stream holds at this moment. It returns false at the
// end of the stream.
func (s *stream) readHeld() bool {
	for held := s.held(); held > 0; {
		room := s.to.WaitRoom()
		if room == 0 {
			return false
		}
		n, err := s.readNow(min(room, held))
		if n > 0 {
			s.commit(n)
		}
		if err != nil {
			return false
		}
		if n <= 0 {
			return true
		}
		held -= n
	}
	return true
}

// commit numbers the n bytes that were read.
func (s *stream) commit(n int) {
	s.to.Commit(n)
	s.most.count(n)
}
