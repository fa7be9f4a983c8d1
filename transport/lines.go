package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// Lines is a Conn with one message to a line, as on stdio and on unix sockets
// (PROTOCOL.md, "Lines").
type Lines struct {
	name   string
	limit  int64
	r      *bufio.Reader
	w      io.Writer
	close  func() error
	once   sync.Once
	closed atomic.Bool
	out    []byte // the line being written, kept for its memory
}

// NewLines makes a Conn that reads lines from r and writes lines to w. close
// must unblock both; it is called once. limit is the largest message accepted,
// in bytes; 0 means DefaultMaxMessageBytes. name is what Name returns.
func NewLines(name string, r io.Reader, w io.Writer, close func() error, limit int64) *Lines {
	if limit <= 0 {
		limit = DefaultMaxMessageBytes
	}
	return &Lines{name: name, limit: limit, r: bufio.NewReaderSize(r, 16<<10), w: w, close: close}
}

// Name implements Conn.
func (l *Lines) Name() string { return l.name }

// Read implements Conn. Blank lines are skipped, a carriage return before the
// line feed is dropped, and a last line without line feed counts.
func (l *Lines) Read(buf []byte) ([]byte, error) {
	for {
		line, err := l.line(buf[:0])
		if tooLarge := (*TooLargeError)(nil); errors.As(err, &tooLarge) {
			return nil, err
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, l.ended(err)
		}
	}
}

// line reads up to and including the next line feed.
func (l *Lines) line(buf []byte) ([]byte, error) {
	for {
		part, err := l.r.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		if size := int64(len(buf) + len(bytes.TrimRight(part, "\r\n"))); size > l.limit {
			return nil, l.skip(append(buf, part...), full)
		}
		buf = append(buf, part...)
		if !full {
			return buf, err
		}
	}
}

// skip drops the rest of a line that begins with b and is too long.
func (l *Lines) skip(b []byte, more bool) error {
	size := int64(len(b))
	for more {
		part, err := l.r.ReadSlice('\n')
		size += int64(len(part))
		more = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !more {
			return l.ended(err)
		}
	}
	return oversize(l.limit, size-1, b)
}

// ended explains a failed read.
func (l *Lines) ended(err error) error {
	if l.closed.Load() {
		return ErrClosed
	}
	return err
}

// Write implements Conn.
func (l *Lines) Write(msg []byte) error {
	l.out = append(append(l.out[:0], msg...), '\n')
	_, err := l.w.Write(l.out)
	if cap(l.out) > 1<<20 {
		l.out = nil
	}
	if err != nil && l.closed.Load() {
		return ErrClosed
	}
	return err
}

// Close implements Conn; the peer sees the end of the stream.
func (l *Lines) Close(Reason) (err error) {
	l.once.Do(func() {
		l.closed.Store(true)
		err = l.close()
	})
	return err
}
