package transport

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// maxFrameBytes is the size of the largest frame sent. Larger messages are fragmented,
// because released clients close a connection with a frame above 16 MiB.
const maxFrameBytes = 4 << 20

// copyBytes is the size up to which a message is copied behind its header, so that one
// write sends both.
const copyBytes = 16 << 10

// maskBytes is how much of a message is read and unmasked, or masked and written, at a time.
// Between the two steps it stays in the processor's cache.
const maskBytes = 128 << 10

// writeBytes is how much of a message one system call writes. A call that writes 4 MiB to a
// loopback connection takes 2.5 ms, and delays the messages of other connections meanwhile.
const writeBytes = 256 << 10

// closeTimeout bounds how long Close may take to send the close frame, and the peer to answer.
const closeTimeout = time.Second

// webSocket is one end of a WebSocket connection, with one message to a text frame
// (PROTOCOL.md, "WebSocket"). It implements Conn and Pinger.
//
// This package does its own framing for two reasons. A library writes control frames
// under a timeout, which ends the connection of a peer that merely stalls. And it makes a
// system call for each message, while this package sends small messages together. The limit
// of a message and LimitTotal bound what a peer can make this end hold. frame.go has the
// header of RFC 6455.
type webSocket struct {
	remote string
	client bool // this is the client's end
	limit  int64
	total  int64 // remaining bytes; see LimitTotal
	bound  int64 // the argument of LimitTotal; 0 if none
	conn   net.Conn
	r      *bufio.Reader
	onPong func(uint64)
	onGrow func(int64) error // nil allows all

	received atomic.Uint64
	closing  atomic.Bool
	readEnd  atomic.Bool // Read has returned its final error
	closed   sync.Once
	hardStop *time.Timer // closes the socket; Close sets it, and then closing

	// writeMu orders frames. A Write holds it as long as the peer does not read. So the
	// reader must not lock it, except to send the close frame, which closeTimeout bounds.
	writeMu  sync.Mutex
	scratch  []byte // frames, or the beginning of one, to be written
	vector   [2][]byte
	sentLast bool // a close frame went out

	// pongMu guards the answer to the latest ping. Older pings need no answer (RFC 6455
	// section 5.5.3).
	pongMu  sync.Mutex
	pong    []byte
	ponging bool // a goroutine is writing pongs
	pongs   sync.WaitGroup
}

// newWebSocket wraps a connection after its upgrade. client is true on the client's end.
func newWebSocket(conn net.Conn, r *bufio.Reader, client bool, peer string, limit int64) *webSocket {
	if limit <= 0 {
		limit = DefaultMaxMessageBytes
	}
	return &webSocket{
		remote: peer,
		client: client,
		limit:  limit,
		conn:   conn,
		r:      r,
	}
}

// Remote implements Conn.
func (w *webSocket) Remote() string { return w.remote }

// OnPong implements Pinger.
func (w *webSocket) OnPong(f func(uint64)) { w.onPong = f }

// LimitTotal implements Limited.
func (w *webSocket) LimitTotal(bytes int64) { w.bound, w.total = bytes, bytes }

// AcceptBinary implements BinaryCarrier. A WebSocket has binary messages of its own.
func (w *webSocket) AcceptBinary() {}

// OnGrow implements Growing.
func (w *webSocket) OnGrow(f func(bytes int64) error) { w.onGrow = f }

// Received implements Pinger.
func (w *webSocket) Received() uint64 { return w.received.Load() }

// Read implements Conn. It answers pings and close frames.
func (w *webSocket) Read(buf []byte) ([]byte, error) {
	msg, err := w.message(buf[:0])
	if err == nil {
		return msg, nil
	}
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) {
		return nil, err
	}
	if ends := (*endError)(nil); errors.As(err, &ends) {
		_ = w.Close(ends.reason)
		// Closing a socket with unread input resets it, and the peer might never read the
		// reason.
		_, _ = io.Copy(io.Discard, w.r)
	}
	w.readEnd.Store(true)
	if w.closing.Load() {
		w.hangUp()
		// Close has set a deadline, and then closes the socket.
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, ErrClosed
		}
	}
	return nil, err
}

// message reads the frames of one message.
func (w *webSocket) message(buf []byte) ([]byte, error) {
	var size int64
	for first := true; ; {
		h, err := readHeader(w.r, !w.client)
		if err != nil {
			if !first {
				err = unexpected(err)
			}
			return nil, err
		}
		if h.control() {
			if err := w.control(h); err != nil {
				return nil, err
			}
			continue
		}
		switch {
		case first && h.opcode == opContinuation:
			return nil, violation(CodeProtocolError, "continuation frame without a message to continue")
		case !first && h.opcode != opContinuation:
			return nil, violation(CodeProtocolError, "new message before the end of the one before")
		}
		first = false
		size += h.length
		if w.bound > 0 && size > w.total {
			return nil, violation(CodePolicy, "%s", errTotal(w.bound))
		}
		if size < 0 {
			return nil, violation(CodeTooBig, "message size overflows")
		}
		if size > w.limit {
			buf, err = w.discard(buf, h)
		} else {
			buf, err = w.payload(buf, h)
		}
		if err != nil {
			return nil, err
		}
		if h.fin && size > w.limit {
			return nil, oversize(w.limit, size, buf)
		}
		if h.fin {
			w.total -= size
			return buf, nil
		}
	}
}

// payload appends the payload of a frame to buf. The memory grows with the bytes that
// arrive, not with the length in the header.
func (w *webSocket) payload(buf []byte, h frameHeader) ([]byte, error) {
	for done := int64(0); done < h.length; {
		step := min(h.length-done, max(64<<10, 3*int64(len(buf))))
		from := len(buf)
		if more := int64(from-cap(buf)) + step; more > 0 && w.onGrow != nil {
			if err := w.onGrow(more); err != nil {
				return nil, &endError{Reason{CodeTryAgainLater, err.Error()}, err}
			}
		}
		buf = slices.Grow(buf, int(step))[:from+int(step)]
		for rest := buf[from:]; len(rest) > 0; {
			n, err := w.r.Read(rest[:min(len(rest), maskBytes)])
			w.received.Add(uint64(n))
			applyMask(rest[:n], h.mask, done)
			done += int64(n)
			if rest = rest[n:]; err != nil && len(rest) > 0 {
				return nil, unexpected(err)
			}
		}
	}
	return buf, nil
}

// discard drops the payload of a frame that exceeds the limit of a message, except for
// the beginning of the message.
func (w *webSocket) discard(buf []byte, h frameHeader) ([]byte, error) {
	kept := h
	kept.length = min(h.length, max(0, prefixBytes-int64(len(buf))))
	buf, err := w.payload(buf, kept)
	for rest := h.length - kept.length; rest > 0 && err == nil; {
		_, err = w.r.Peek(1)
		n, _ := w.r.Discard(int(min(rest, int64(w.r.Buffered()))))
		w.received.Add(uint64(n))
		rest -= int64(n)
	}
	return buf, unexpected(err)
}

// control handles a control frame.
func (w *webSocket) control(h frameHeader) error {
	var space [maxControlBytes]byte
	b := space[:h.length]
	if _, err := io.ReadFull(w.r, b); err != nil {
		return unexpected(err)
	}
	applyMask(b, h.mask, 0)
	switch h.opcode {
	case opPing:
		w.answerPing(b)
	case opPong:
		payload, err := strconv.ParseUint(string(b), 10, 64)
		if err == nil && w.onPong != nil {
			w.onPong(payload)
		}
	case opClose:
		return w.peerCloses(b)
	}
	return nil
}

// answerPing lets a goroutine write the pong, because the reader must continue while the
// peer does not read.
func (w *webSocket) answerPing(payload []byte) {
	w.pongMu.Lock()
	defer w.pongMu.Unlock()
	w.pong = append(make([]byte, 0, len(payload)), payload...)
	if w.ponging {
		return
	}
	w.ponging = true
	w.pongs.Go(func() {
		for {
			w.pongMu.Lock()
			pong := w.pong
			w.pong = nil
			w.ponging = pong != nil
			w.pongMu.Unlock()
			if pong == nil {
				return
			}
			// The writer and the reader notice a failure as well.
			_ = w.writeControl(opPong, pong)
		}
	})
}

// peerCloses answers a close frame with the same code.
func (w *webSocket) peerCloses(payload []byte) error {
	reason := Reason{Code: CodeNormal}
	switch {
	case len(payload) == 1:
		return violation(CodeProtocolError, "close frame of one byte")
	case len(payload) >= 2:
		reason = Reason{int(binary.BigEndian.Uint16(payload)), string(payload[2:])}
		if !validCloseCode(reason.Code) || !utf8.ValidString(reason.Text) {
			return violation(CodeProtocolError, "invalid close frame")
		}
	}
	_ = w.Close(Reason{Code: reason.Code})
	return &PeerClosedError{reason}
}

// validCloseCode reports whether a peer may send code (RFC 6455 section 7.4).
func validCloseCode(code int) bool {
	switch {
	case code >= 1000 && code <= 1003, code >= 1007 && code <= 1014, code >= 3000 && code <= 4999:
		return true
	}
	return false
}

// Write implements Conn. It sends messages above maxFrameBytes in fragments.
func (w *webSocket) Write(messages ...[]byte) error {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	if w.sentLast {
		return ErrClosed
	}
	return w.failed(w.writeAll(messages))
}

// Ping implements Pinger.
func (w *webSocket) Ping(payload uint64) error {
	return w.writeControl(opPing, strconv.AppendUint(nil, payload, 10))
}

func (w *webSocket) writeControl(opcode byte, payload []byte) error {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	if w.sentLast {
		return ErrClosed
	}
	w.sentLast = opcode == opClose
	w.appendFrame(opcode, payload)
	return w.failed(w.flush())
}

// failed replaces an error that Close caused with ErrClosed.
func (w *webSocket) failed(err error) error {
	if err != nil && w.closing.Load() {
		return ErrClosed
	}
	return err
}

// writeAll writes messages, small ones together. The caller holds writeMu, as do the
// callers of the functions below.
func (w *webSocket) writeAll(messages [][]byte) error {
	for _, msg := range messages {
		if len(w.scratch)+len(msg) > copyBytes {
			if err := w.flush(); err != nil {
				return err
			}
		}
		if len(msg) <= copyBytes {
			w.appendFrame(opcodeOf(msg), msg)
		} else if err := w.large(msg); err != nil {
			return err
		}
	}
	return w.flush()
}

// appendFrame appends a whole frame to what flush writes.
func (w *webSocket) appendFrame(opcode byte, payload []byte) {
	key := w.header(true, opcode, len(payload))
	from := len(w.scratch)
	w.scratch = append(w.scratch, payload...)
	applyMask(w.scratch[from:], key, 0)
}

// header appends the header of a frame. A client's key is random, so that a peer cannot choose
// the bytes that a proxy sees (RFC 6455 section 10.3).
func (w *webSocket) header(fin bool, opcode byte, length int) (key [4]byte) {
	from := len(w.scratch)
	w.scratch = appendHeader(w.scratch, fin, opcode, length)
	if w.client {
		_, _ = rand.Read(key[:]) // never fails
		w.scratch[from+1] |= maskBit
		w.scratch = append(w.scratch, key[:]...)
	}
	return key
}

// flush writes the frames that were appended.
func (w *webSocket) flush() error {
	if len(w.scratch) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.scratch)
	w.scratch = w.scratch[:0]
	return err
}

// large writes a message that is not worth a copy, when no frame waits for flush.
func (w *webSocket) large(msg []byte) error {
	opcode := opcodeOf(msg)
	for {
		part := msg[:min(len(msg), maxFrameBytes)]
		msg = msg[len(part):]
		key := w.header(len(msg) == 0, opcode, len(part))
		opcode = opContinuation
		var err error
		if w.client {
			err = w.masked(part, key)
		} else {
			err = w.plain(part)
		}
		if err != nil || len(msg) == 0 {
			return err
		}
	}
}

// plain writes the payload of a server's frame after its header.
func (w *webSocket) plain(payload []byte) error {
	for piece := range slices.Chunk(payload, writeBytes) {
		w.vector = [2][]byte{w.scratch, piece}
		buffers := net.Buffers(w.vector[:])
		if len(w.scratch) == 0 {
			buffers = buffers[1:] // a reader may take an empty write for the end
		}
		_, err := buffers.WriteTo(w.conn)
		w.vector = [2][]byte{}
		w.scratch = w.scratch[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

// masked writes the payload of a client's frame after its header.
func (w *webSocket) masked(payload []byte, key [4]byte) error {
	for done := 0; done < len(payload); {
		from := len(w.scratch)
		w.scratch = append(w.scratch, payload[done:min(len(payload), done+maskBytes)]...)
		applyMask(w.scratch[from:], key, int64(done))
		done += len(w.scratch) - from
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}

// Close implements Conn. It sends a close frame with the reason, and ends the stream. A
// Read in progress continues until the peer's close frame or end of stream, at most
// closeTimeout.
func (w *webSocket) Close(reason Reason) error {
	w.closed.Do(func() {
		_ = w.conn.SetDeadline(time.Now().Add(closeTimeout))
		w.hardStop = time.AfterFunc(closeTimeout, w.closeSocket)
		w.closing.Store(true)
		text := reason.Text
		if len(text) > maxControlBytes-2 {
			text = text[:maxControlBytes-2]
		}
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
		switch {
		case reason.Code == 0:
			reason.Code = CodeNormal
		case !validCloseCode(reason.Code): // as that of another peer, which a relay passes on
			reason.Code = CodeInternal
		}
		payload := binary.BigEndian.AppendUint16(nil, uint16(reason.Code))
		_ = w.writeControl(opClose, append(payload, text...))
		// Ending only this direction lets the peer read the close frame. Closing a socket
		// with unread input would reset it.
		if half, ok := w.conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		if w.readEnd.Load() {
			w.hangUp()
		}
	})
	return nil
}

// hangUp closes the socket once the reader has seen the end of the stream.
func (w *webSocket) hangUp() {
	w.hardStop.Stop()
	w.closeSocket()
	w.pongs.Wait()
}

// closeSocket closes the TCP socket without TLS, whose own close waits seconds for a peer
// that does not read.
func (w *webSocket) closeSocket() { _ = belowTLS(w.conn).Close() }

// belowTLS returns the connection below TLS, or conn itself.
func belowTLS(conn net.Conn) net.Conn {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return secure.NetConn()
	}
	return conn
}
