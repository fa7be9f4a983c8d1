// Package transport turns bytes into whole messages and back: lines over stdio and unix
// sockets, WebSocket, and pairs in memory. It does not interpret the messages.
//
// Start at [Conn], which carries the messages between a client and a server. For a
// connection of your own, [NewStream] makes a Conn of a stream of bytes, and [NewLines] of
// a reader and a writer; the other end must speak lines, too. [Dial] connects to a ws://,
// wss:// or unix:// URL, [Pipe] connects two parts of a program, and [Upgrade] accepts a
// WebSocket. You can also implement Conn yourself. Client and server look for the optional
// interfaces [Pinger], [HalfCloser], [Limited] and [BinaryCarrier], and a gateway for [Growing]. A Conn that
// wraps another loses those that it does not implement itself.
package transport

import (
	"errors"
	"fmt"
)

// DefaultMaxMessageBytes is the default size of the largest accepted message: 64 MiB
// (PROTOCOL.md, "Limits").
const DefaultMaxMessageBytes = 64 << 20

// Conn carries whole messages in both directions.
//
// One goroutine may call Read and another one Write at the same time. Any goroutine may
// call Close, any number of times.
type Conn interface {
	// Read appends the next message to buf[:0] and returns it. The result shares buf's
	// memory if that is large enough, and belongs to the caller. For a message above the
	// limit Read returns a *TooLargeError and skips the message; the connection
	// continues. Every other error is final. io.EOF says that the peer ended the stream
	// in order. Close unblocks Read.
	Read(buf []byte) ([]byte, error)

	// Write sends messages, small ones together with one system call. It blocks while the
	// peer does not read, and keeps no reference to the messages. Close unblocks Write
	// within a second.
	Write(messages ...[]byte) error

	// Close ends the connection, and sends the reason to the peer if the transport can.
	Close(Reason) error

	// Remote describes the other end for the log: "127.0.0.1:4711", "unix socket",
	// "stdio", "in-process connection".
	Remote() string
}

// Pinger is a Conn that can ask its peer for a sign of life. A pong also proves that the
// peer has read everything sent before its ping. Client and server end a connection whose
// peer shows no sign of life. A Conn that is no Pinger has to notice a dead peer itself,
// and fail its Read.
type Pinger interface {
	Conn

	// Ping asks for a pong that carries payload. It blocks like Write. Any goroutine may
	// call it.
	Ping(payload uint64) error

	// OnPong sets the function that Read calls for every pong that answers a Ping. It
	// must be set before the first Read, and must not block.
	OnPong(func(payload uint64))

	// Received returns how many bytes of messages have arrived, also of an incomplete
	// message: a peer that sends a large message cannot answer a ping before its end.
	Received() uint64
}

// HalfCloser is a Conn whose peer can end its direction of the stream and continue to
// read. io.EOF then says that the peer has sent all its requests, not that it is gone. A
// server still answers those requests before it closes the connection.
type HalfCloser interface {
	Conn
	HalfCloses() // does nothing
}

// Limited is a Conn that can bound the sum of the peer's bytes. A server bounds them, and
// the time, until the client has initialized the connection. It bounds neither on a Conn
// that is not Limited.
type Limited interface {
	Conn
	// LimitTotal makes Read end the connection when the messages from now on exceed a
	// number of bytes; 0 means no bound. It must not be called while Read runs.
	LimitTotal(bytes int64)
}

// Growing is a Conn that asks before it takes memory for a message. So a gateway bounds what
// the messages of all its clients take together.
type Growing interface {
	Conn
	// OnGrow sets the function that Read calls before the memory of a message grows by a
	// number of bytes. It may block, and the peer waits. An error of it ends the connection
	// with CodeTryAgainLater; Read returns that error. It must not be called while Read runs.
	OnGrow(func(bytes int64) error)
}

// errTotal is the text for a peer that has sent more than LimitTotal allows.
func errTotal(limit int64) string {
	return fmt.Sprintf("the client sent more than %d bytes before it initialized the connection", limit)
}

// Reason says why a connection ends, with the status codes of RFC 6455 section 7.4.1.
// Transports without such codes drop it.
type Reason struct {
	Code int    // 0 means CodeNormal
	Text string // at most 123 bytes; the rest is cut
}

// The codes that client and server send as Reason.Code.
const (
	CodeNormal        = 1000
	CodeGoingAway     = 1001
	CodeProtocolError = 1002
	CodeInvalidData   = 1007
	CodePolicy        = 1008
	CodeTooBig        = 1009
	CodeInternal      = 1011
	CodeTryAgainLater = 1013
)

// ErrClosed is the error of Read and Write after Close was called on this end.
var ErrClosed = errors.New("connection closed")

// PeerClosedError is the error of Read after the peer ended a WebSocket with a close
// frame.
type PeerClosedError struct {
	Reason Reason
}

func (e *PeerClosedError) Error() string {
	return fmt.Sprintf("peer closed the connection with code %d: %s", e.Reason.Code, e.Reason.Text)
}

// TooLargeError says that the peer sent a message above the limit.
type TooLargeError struct {
	Limit, Size int64  // bytes; Size is what arrived
	Prefix      []byte // the beginning of the message
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("message of %d bytes exceeds the limit of %d bytes", e.Size, e.Limit)
}

// prefixBytes is how much of a message above the limit is kept, enough to find out which
// request it was.
const prefixBytes = 4 << 10

// oversize returns the error for a message of size bytes that begins with b.
func oversize(limit, size int64, b []byte) error {
	prefix := append([]byte(nil), b[:min(len(b), prefixBytes)]...)
	return &TooLargeError{Limit: limit, Size: size, Prefix: prefix}
}
