package process

import (
	"os"
	"sync"
	"sync/atomic"
)

// stream reads one output of a child into the log.
type stream struct {
	name string
	file *os.File
	log  *Log
	most *outputLimit // nil: none

	drained chan struct{} // closed when what the leader wrote is in the log
	once    sync.Once     // closes drained
	ended   chan struct{} // closed at the end of the stream
	order   atomic.Int32  // what the waiter asks for; see orders below
	segment *segment      // memory being filled; nil at first
	size    int           // of the next segment
}

// What drain and finish ask of a stream's reader, in ascending order.
const (
	orderRead   = iota
	orderDrain  // report when what is there now has been read
	orderFinish // the same, and then end
)

// Segments grow with the stream, so that an idle process costs little and a
// busy one few reads.
const (
	firstSegment = 2 << 10
	maxSegment   = maxChunkBytes
)

func newStream(log *Log, name string, file *os.File, most *outputLimit) *stream {
	return &stream{
		name: name, file: file, log: log, most: most,
		drained: make(chan struct{}), ended: make(chan struct{}),
		size: firstSegment,
	}
}

// drain asks the reader to close drained once everything that the stream holds
// now is in the log.
func (s *stream) drain() { s.interrupt(orderDrain) }

// finish asks the reader to read what the stream holds now and then to end it,
// whoever still has it open.
func (s *stream) finish() { s.interrupt(orderFinish) }

// run reads until the end of the stream, or until finish. When the process closes
// before, it goes on with the background log.
func (s *stream) run() {
	defer close(s.ended)
	defer s.markDrained()
	for {
		room := s.log.waitRoom()
		if room == 0 {
			background := s.log.Background()
			if background == nil {
				return
			}
			s.log, s.segment = background, nil
			continue
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

// readHeld reads what the stream holds at this moment, at least; false at the
// end of the stream.
func (s *stream) readHeld() bool {
	for held := s.held(); held > 0; {
		room := s.log.waitRoom()
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

// buffer returns memory for up to room bytes.
func (s *stream) buffer(room int) []byte {
	if s.segment == nil || !s.roomy() {
		s.segment = s.log.nextSegment(s.segment, s.size)
	}
	buf := s.segment.buf
	free := buf[len(buf):cap(buf)]
	return free[:min(room, len(free))]
}

// roomy reports whether a read into what is left of the segment is worth it.
func (s *stream) roomy() bool {
	free := cap(s.segment.buf) - len(s.segment.buf)
	return free > 0 && free >= s.size/4
}

// commit hands the n bytes that were read into buffer to the log.
func (s *stream) commit(n int) {
	from := len(s.segment.buf)
	s.segment.buf = s.segment.buf[:from+n]
	s.log.append(s.name, s.segment.buf[from:], s.segment)
	s.most.count(n)
	if len(s.segment.buf) == cap(s.segment.buf) {
		s.size = min(2*s.size, maxSegment)
	}
}
