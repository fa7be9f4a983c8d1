package process

import (
	"os"
	"sync"
	"sync/atomic"

	"execserver/internal/output"
)

// stream reads one output of a child into the log.
type stream struct {
	file   *os.File
	writer *output.Writer
	limit  *outputLimit // nil: none

	drained chan struct{} // closed when what the leader wrote is in the log
	once    sync.Once     // closes drained
	ended   chan struct{} // closed at the end of the stream
	mode    atomic.Int32  // what the reader should do
}

// The modes of a stream's reader; a later one includes the earlier ones.
const (
	modeRead   = iota
	modeDrain  // close drained once the present content has been read
	modeFinish // as modeDrain, and then end the stream
)

func newStream(writer *output.Writer, file *os.File, limit *outputLimit) *stream {
	return &stream{
		file: file, writer: writer, limit: limit,
		drained: make(chan struct{}), ended: make(chan struct{}),
	}
}

// drain makes the reader close drained when everything that the stream holds now is in the
// log.
func (s *stream) drain() { s.interrupt(modeDrain) }

// finish makes the reader end the stream after reading what it holds now, even if other
// processes have it open.
func (s *stream) finish() { s.interrupt(modeFinish) }

// run reads until the end of the stream, or until finish. If the process closes first, the
// writer continues with the background log.
func (s *stream) run() {
	defer close(s.ended)
	defer s.markDrained()
	for {
		space := s.writer.Reserve()
		if space == 0 {
			return
		}
		n, interrupted, err := s.read(space)
		if n > 0 {
			s.commit(n)
		}
		switch {
		case interrupted:
			mode := s.mode.Load()
			if !s.readBuffered() {
				return
			}
			s.markDrained()
			if mode == modeFinish {
				return
			}
		case err != nil:
			return // a terminal without holders fails with EIO
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

// readBuffered reads at least what the stream holds at this moment. It returns false at the
// end of the stream.
func (s *stream) readBuffered() bool {
	for left := s.buffered(); left > 0; {
		space := s.writer.Reserve()
		if space == 0 {
			return false
		}
		n, err := s.readNow(min(space, left))
		if n > 0 {
			s.commit(n)
		}
		if err != nil {
			return false
		}
		if n <= 0 {
			return true
		}
		left -= n
	}
	return true
}

// commit appends the n bytes just read to the log.
func (s *stream) commit(n int) {
	s.writer.Commit(n)
	s.limit.count(n)
}

// outputLimit ends a process that writes more than its limit.
type outputLimit struct {
	left     atomic.Int64
	exceeded func() // called once
}

// count counts n more bytes.
func (l *outputLimit) count(n int) {
	if l == nil {
		return
	}
	if left := l.left.Add(-int64(n)); left < 0 && left+int64(n) >= 0 {
		l.exceeded()
	}
}
