package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// messageFrom is what the names of connections begin with.
const messageFrom = "JSON-RPC message from exec-server "

// Lines is a Conn with one message to a line, as on stdio and on unix sockets
// (PROTOCOL.md, "Lines").
type Lines struct {
	name   string
	limit  int64
	total  int64 // bytes that may still come; see LimitTotal
	bound  int64 // what LimitTotal was told; 0: there is none
	r      *bufio.Reader
	w      io.Writer
	close  func() error
	once   sync.Once
	closed atomic.Bool
	out    []byte // the lines being written, kept for their memory
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

// Remote implements Conn. Streams have no address, so it is the kind of stream
// that Name ends with.
func (l *Lines) Remote() string { return strings.TrimPrefix(l.name, messageFrom) }

// LimitTotal implements Limited.
func (l *Lines) LimitTotal(bytes int64) { l.bound, l.total = bytes, bytes }

// HalfCloses implements HalfCloser.
func (l *Lines) HalfCloses() {}

// Read implements Conn. Blank lines are skipped, a carriage return before the
// line feed is dropped, and a last line without line feed counts.
func (l *Lines) Read(buf []byte) ([]byte, error) {
	for {
		line, size, err := l.line(buf[:0])
		l.total -= size
		switch {
		case l.bound > 0 && l.total < 0:
			return nil, errors.New(errTotal(l.bound))
		case err != nil && err != io.EOF:
			return nil, l.ended(err)
		case size > l.limit:
			return nil, oversize(l.limit, size, line)
		case len(bytes.TrimSpace(line)) > 0:
			return line, nil
		case err != nil:
			return nil, l.ended(err)
		}
	}
}

// line reads up to the next line feed, or the end of the stream. size is the
// length of the line without its ending; buf holds the line, or the beginning
// of one above the limit.
func (l *Lines) line(buf []byte) (_ []byte, size int64, err error) {
	ending, last := 0, byte(0)
	for {
		part, err := l.r.ReadSlice('\n')
		size += int64(len(part))
		if l.bound > 0 && size > l.total {
			return buf, size, err
		}
		kept := part[:min(int64(len(part)), l.limit-int64(len(buf)))]
		if cap(buf)-len(buf) < len(kept) {
			buf = slices.Grow(buf, max(len(kept), len(buf)))
		}
		buf = append(buf, kept...)
		if errors.Is(err, bufio.ErrBufferFull) {
			last = part[len(part)-1]
			continue
		}
		if err == nil {
			ending = 1
			if len(part) > 1 {
				last = part[len(part)-2]
			}
			if last == '\r' {
				ending = 2
			}
		}
		size -= int64(ending)
		return buf[:min(int64(len(buf)), size)], size, err
	}
}

// ended explains a failed read.
func (l *Lines) ended(err error) error {
	if l.closed.Load() {
		return ErrClosed
	}
	return err
}

// Write implements Conn.
func (l *Lines) Write(messages ...[]byte) error {
	if l.closed.Load() {
		return ErrClosed
	}
	l.out = l.out[:0]
	for _, msg := range messages {
		l.out = append(append(l.out, msg...), '\n')
	}
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
