// Package transport carries whole messages over byte streams: lines over stdio and unix
// sockets, WebSocket, and in-memory pairs. It does not interpret the messages.
//
// A [Conn] connects a client and a server. [Dial] connects to a ws://, wss:// or unix:// URL,
// [Upgrade] accepts a WebSocket, and [Pipe] connects two parts of a program. [NewStream] and
// [NewLines] make a Conn from a stream of your own, whose other end must also use lines.
//
// You can also implement Conn. Clients and servers use the optional interfaces [Pinger],
// [HalfCloser], [Limited], [BinaryCarrier] and [Growing] of a Conn. A Conn that wraps another must
// implement them itself.
package transport

import (
	"errors"
	"fmt"
	"io"
)

// DefaultMaxMessageBytes is the default size of the largest accepted message: 64 MiB
// (PROTOCOL.md, "Limits").
const DefaultMaxMessageBytes = 64 << 20

// Conn carries whole messages in both directions.
//
// One goroutine may call Read and another one Write at the same time. Any goroutine may
// call Close, any number of times.
type Conn interface {
	// Read reads the next message into buf's memory, or into new memory if buf is too small, and
	// returns it. The result belongs to the caller. If a message exceeds the limit, Read skips it
	// and returns a *TooLargeError; the connection continues. Every other error is final. If the
	// peer closed the connection, the error is io.EOF, or for a WebSocket a *PeerClosedError.
	// Close unblocks Read.
	Read(buf []byte) ([]byte, error)

	// Write sends messages, small ones in one system call. It blocks while the peer does not
	// read. It neither retains nor changes the messages. An error is final. Close unblocks Write
	// within a second.
	Write(messages ...[]byte) error

	// Close closes the connection, and sends the reason to the peer if the transport can. Only
	// the first call has an effect.
	Close(Reason) error

	// Remote describes the other end, for logs and errors: its address HOST:PORT, "unix socket",
	// "stdio" or "in-process connection". By default a client compresses nothing if the host is a
	// loopback address, or the text is "unix socket" or "in-process connection".
	Remote() string
}

// Pinger is a Conn that can ping its peer. A pong also proves that the peer has read
// everything sent before the ping. Clients and servers close a connection whose peer does not
// respond. A Conn that is not a Pinger must detect a dead peer itself, and return an error
// from Read.
type Pinger interface {
	Conn

	// Ping asks for a pong that carries payload. It blocks like Write. Any goroutine may
	// call it.
	Ping(payload uint64) error

	// OnPong sets the function that Read calls for every pong that answers a Ping. It
	// must be set before the first Read, and must not block.
	OnPong(func(payload uint64))

	// Received returns the number of bytes of messages received so far, including those of an
	// incomplete message: a peer cannot answer a ping before the end of a large message.
	Received() uint64
}

// HalfCloser is a Conn whose peer can close its direction of the stream and continue to read. After
// io.EOF from Read, a server answers the pending requests before it closes the connection. The
// method HalfCloses only marks such a Conn.
type HalfCloser interface {
	Conn
	HalfCloses() // does nothing
}

// Limited is a Conn that can limit the total number of bytes received. Until the client has
// initialized the connection, a server limits these bytes and the time. On a Conn that is not
// Limited it limits neither.
type Limited interface {
	Conn
	// LimitTotal makes Read close the connection when the messages read from now on exceed a
	// total number of bytes; 0 means no limit. It must not be called during Read.
	LimitTotal(bytes int64)
}

// Growing is a Conn that reports the memory of incoming messages before allocating it, so that
// a server or gateway can bound the total memory of its clients' messages.
type Growing interface {
	Conn
	// OnGrow sets a function that Read calls before it allocates more memory for a message, with
	// the number of bytes. The function may block, which blocks the peer. If it fails, Read
	// closes the connection with CodeTryAgainLater and returns the error. OnGrow must not be
	// called during Read.
	OnGrow(func(bytes int64) error)
}

// BinaryCarrier is a Conn that can carry binary messages as well as JSON (EXTENSIONS.md,
// "binaryFrames"), distinguished by their first byte. Clients and servers send binary messages
// only if both use a BinaryCarrier.
type BinaryCarrier interface {
	Conn
	// AcceptBinary lets Read accept binary messages. It must not be called during Read.
	AcceptBinary()
}

// errTotal is the reason for a peer that has sent more than LimitTotal allows.
func errTotal(limit int64) string {
	return fmt.Sprintf("the client sent more than %d bytes before it initialized the connection", limit)
}

// Reason is the reason for closing a connection, with the status codes of RFC 6455 section
// 7.4.1. Transports without such codes ignore it.
type Reason struct {
	Code int    // 0 means CodeNormal
	Text string // at most 123 bytes; the rest is cut
}

// The codes that client and server send as Reason.Code.
const (
	CodeNormal        = 1000 // the client is done, which ends a session that holds nothing
	CodeGoingAway     = 1001 // the client may come back, or the server shuts down
	CodeProtocolError = 1002
	codeInvalidData   = 1007
	CodePolicy        = 1008 // the connection is no longer permitted
	CodeTooBig        = 1009 // a message or their total exceeds a limit
	CodeInternal      = 1011
	CodeTryAgainLater = 1013 // the server lacks resources now
)

// ErrClosed is the error of Read and Write after Close was called on this end.
var ErrClosed = errors.New("connection closed")

// PeerClosedError is the error of Read after the peer has closed a WebSocket with a close frame,
// whatever its code.
type PeerClosedError struct {
	Reason Reason
}

func (e *PeerClosedError) Error() string {
	return fmt.Sprintf("peer closed the connection with code %d: %s", e.Reason.Code, e.Reason.Text)
}

// TooLargeError reports that the peer sent a message above the limit.
type TooLargeError struct {
	Limit, Size int64  // bytes
	Prefix      []byte // the beginning of the message
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("message of %d bytes exceeds the limit of %d bytes", e.Size, e.Limit)
}

// prefixBytes is the length of TooLargeError.Prefix, enough to find the id of the request.
const prefixBytes = 4 << 10

// oversize returns the error for a message of size bytes that begins with b.
func oversize(limit, size int64, b []byte) error {
	prefix := append([]byte(nil), b[:min(len(b), prefixBytes)]...)
	return &TooLargeError{Limit: limit, Size: size, Prefix: prefix}
}

// endError is an error at which Read ends the connection with a close frame.
type endError struct {
	reason Reason
	cause  error
}

func (e *endError) Error() string { return e.cause.Error() }

func (e *endError) Unwrap() error { return e.cause }

// unexpected distinguishes the end of the stream inside a frame from one between two
// frames.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
