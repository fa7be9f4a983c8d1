package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// lines is a Conn with one message to a line, for stdio and unix sockets (PROTOCOL.md, "Lines").
type lines struct {
	kind   string
	limit  int64
	total  int64 // bytes that may still arrive; see LimitTotal
	bound  int64 // the argument of LimitTotal; 0 if none
	r      *bufio.Reader
	w      io.Writer
	close  func() error
	once   sync.Once
	closed atomic.Bool
	out    []byte // the lines being written; kept to be reused
	vector [2][]byte
	binary bool // see AcceptBinary
	onGrow func(bytes int64) error
}

// NewLines returns a Conn that reads lines from r and writes lines to w, such as standard
// input and output. It implements [HalfCloser], [Limited], [Growing] and [BinaryCarrier].
//
// The first Close of the Conn calls close, which must unblock a Read of r and a Write to w.
// If close cannot unblock them, as with files in blocking mode, Read and Write of the Conn may
// hang after Close, and the program must not wait for them. limit is the size of the largest accepted
// message in bytes; 0 means DefaultMaxMessageBytes. kind names the stream in the log and in
// errors, such as "stdio".
func NewLines(kind string, r io.Reader, w io.Writer, close func() error, limit int64) Conn {
	if limit <= 0 {
		limit = DefaultMaxMessageBytes
	}
	return &lines{kind: kind, limit: limit, r: bufio.NewReaderSize(r, 16<<10), w: w, close: close}
}

// NewStream is like NewLines, over a bidirectional stream such as a TCP connection or an SSH
// channel. The other end must also use lines, as do the unix socket and the stdio of an
// exec-server, and Server.ServeConn over a NewStream. Use Dial for a server that listens on a
// ws:// URL. The stream's Close must unblock its Read and Write. The limit is
// DefaultMaxMessageBytes.
func NewStream(stream io.ReadWriteCloser) Conn {
	return NewLines("stream", stream, stream, stream.Close, 0)
}

// NewUnix is like [NewLines], over a connection of a unix socket, on either end. A reset by
// the peer counts as the end of the stream.
func NewUnix(conn net.Conn, limit int64) Conn {
	return NewLines("unix socket", unixReader{conn}, conn, conn.Close, limit)
}

// unixReader reads from a unix socket. When the peer closes the socket without reading
// everything, the system reports "connection reset" instead of the end of the stream,
// after everything that the peer has written.
type unixReader struct{ conn net.Conn }

func (r unixReader) Read(b []byte) (int, error) {
	n, err := r.conn.Read(b)
	if errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return n, err
}

// Remote implements Conn. A stream has no address, so Remote returns its kind.
func (l *lines) Remote() string { return l.kind }

// LimitTotal implements Limited.
func (l *lines) LimitTotal(bytes int64) { l.bound, l.total = bytes, bytes }

// OnGrow implements Growing.
func (l *lines) OnGrow(f func(bytes int64) error) { l.onGrow = f }

// HalfCloses implements HalfCloser.
func (l *lines) HalfCloses() {}

// AcceptBinary implements BinaryCarrier.
func (l *lines) AcceptBinary() { l.binary = true }

// Read implements Conn. It skips blank lines, drops a carriage return before the line
// feed, and accepts a last line without line feed.
func (l *lines) Read(buf []byte) ([]byte, error) {
	for {
		if l.frameFollows() {
			msg, err := l.binaryMessage(buf[:0])
			if err != nil {
				err = l.ended(err)
			}
			return msg, err
		}
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

// line reads up to the next line feed or the end of the stream. size is the length of the
// line without its ending. buf holds the line, or the beginning of one above the limit.
func (l *lines) line(buf []byte) (_ []byte, size int64, err error) {
	ending, last := 0, byte(0)
	for {
		part, err := l.r.ReadSlice('\n')
		size += int64(len(part))
		if l.bound > 0 && size > l.total {
			return buf, size, err
		}
		kept := part[:min(int64(len(part)), l.limit-int64(len(buf)))]
		if cap(buf)-len(buf) < len(kept) {
			room := len(buf) + max(len(kept), len(buf))
			if err := l.grow(int64(room - cap(buf))); err != nil {
				return buf, size, err
			}
			buf = append(make([]byte, 0, room), buf...)
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

// grow calls onGrow before memory is allocated, and closes the connection if it fails.
func (l *lines) grow(bytes int64) error {
	if bytes <= 0 || l.onGrow == nil {
		return nil
	}
	err := l.onGrow(bytes)
	if err != nil {
		err = &endError{Reason{CodeTryAgainLater, err.Error()}, err}
		_ = l.Close(Reason{})
	}
	return err
}

// frameMark begins a binary message where a line would begin. Four bytes with its length
// follow, and then the message.
const frameMark = 0

// frameFollows reports whether the next message is in a frame.
func (l *lines) frameFollows() bool {
	if !l.binary {
		return false
	}
	next, err := l.r.Peek(1)
	return err == nil && next[0] == frameMark
}

// firstStep is how much memory a frame gets at first: enough for 64 KiB of data.
const firstStep = 72 << 10

// binaryMessage reads the message in a frame. The memory grows with the bytes that arrive, not with
// the length in the header.
func (l *lines) binaryMessage(buf []byte) ([]byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(l.r, header[:]); err != nil {
		return nil, unexpected(err)
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	kept, tooLarge := size, size > l.limit
	if tooLarge {
		kept = min(size, prefixBytes)
	}
	for int64(len(buf)) < kept {
		from := len(buf)
		step := int(min(kept-int64(from), max(firstStep, 3*int64(from))))
		if err := l.grow(int64(from - cap(buf) + step)); err != nil {
			return nil, err
		}
		buf = slices.Grow(buf, step)[:from+step]
		if _, err := io.ReadFull(l.r, buf[from:]); err != nil {
			return nil, unexpected(err)
		}
	}
	if !tooLarge {
		return buf, nil
	}
	if _, err := io.CopyN(io.Discard, l.r, size-kept); err != nil {
		return nil, unexpected(err)
	}
	return nil, oversize(l.limit, size, buf)
}

// ended explains a failed read.
func (l *lines) ended(err error) error {
	if l.closed.Load() && !errors.As(err, new(*endError)) {
		return ErrClosed
	}
	return err
}

// Write implements Conn.
func (l *lines) Write(messages ...[]byte) error {
	if l.closed.Load() {
		return ErrClosed
	}
	l.out = l.out[:0]
	var err error
	for _, msg := range messages {
		switch {
		case err != nil:
		case isBinary(msg):
			err = l.appendBinary(msg)
		default:
			l.out = append(append(l.out, msg...), '\n')
		}
	}
	if err == nil && len(l.out) > 0 {
		_, err = l.w.Write(l.out)
	}
	if cap(l.out) > 1<<20 {
		l.out = nil
	}
	if err != nil && l.closed.Load() {
		return ErrClosed
	}
	return err
}

// appendBinary appends a binary message to what Write has collected. On a connection, it sends a large
// one at once instead, with what was collected before. A pipe has no call for that, and two
// writes would wake its reader twice.
func (l *lines) appendBinary(msg []byte) error {
	l.out = append(l.out, frameMark)
	l.out = binary.BigEndian.AppendUint32(l.out, uint32(len(msg)))
	if _, ok := l.w.(net.Conn); !ok || len(msg) <= copyBytes {
		l.out = append(l.out, msg...)
		return nil
	}
	l.vector = [2][]byte{l.out, msg}
	buffers := net.Buffers(l.vector[:])
	_, err := buffers.WriteTo(l.w)
	l.vector = [2][]byte{}
	l.out = l.out[:0]
	return err
}

// Close implements Conn. The peer sees the end of the stream.
func (l *lines) Close(Reason) (err error) {
	l.once.Do(func() {
		l.closed.Store(true)
		err = l.close()
	})
	return err
}
