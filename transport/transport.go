// Package transport turns bytes into whole messages and back: lines over stdio
// and unix sockets, WebSocket, and pairs in memory. It knows nothing of what
// the messages say.
//
// Start at [Conn], which every transport implements; [NewLines], [Upgrade],
// [Pipe] and [ListenUnix] make them.
package transport

import (
	"errors"
	"fmt"
)

// DefaultMaxMessageBytes is the largest message that is accepted unless the
// caller says otherwise: 64 MiB (PROTOCOL.md, "Limits").
const DefaultMaxMessageBytes = 64 << 20

// Conn carries whole messages in both directions.
//
// Read may be called by one goroutine, Write by another one; Close may be
// called by any, any number of times.
type Conn interface {
	// Read appends the next message to buf[:0] and returns it; the result
	// shares buf's memory when it is large enough and is the caller's. Read
	// returns a *TooLargeError for a message above the limit, which it has
	// skipped: the connection goes on. Every other error is final; io.EOF says
	// that the peer ended the stream in an orderly way. Close unblocks it.
	Read(buf []byte) ([]byte, error)

	// Write sends messages, small ones with one system call. It blocks while
	// the peer does not read, and keeps no reference to them. Close unblocks
	// it within closeTimeout.
	Write(messages ...[]byte) error

	// Close ends the connection and tells the peer why where the transport
	// can.
	Close(Reason) error

	// Name names the connection in the error that answers a malformed message:
	// "JSON-RPC message from exec-server stdio".
	Name() string

	// Remote says who is at the other end, for the log: "127.0.0.1:4711",
	// "unix socket", "stdio", "in-process connection".
	Remote() string
}

// Pinger is a Conn whose peer can be asked for a sign of life. A pong also
// proves that the peer has read everything sent before its ping.
type Pinger interface {
	// Ping asks for a pong that carries payload. It blocks like Write and may
	// be called by any goroutine.
	Ping(payload uint64) error

	// OnPong sets the function that Read calls for every pong to a ping of
	// ours. It must be set before the first Read and must not block.
	OnPong(func(payload uint64))

	// Received is how many bytes of messages have arrived, those of a message
	// that Read has not seen the end of included: a peer that sends a large
	// message cannot answer a ping before its end.
	Received() uint64
}

// HalfCloser is a Conn whose peer can end its direction of the stream and read
// on: io.EOF then says that the peer has sent all its requests, not that it is
// gone.
type HalfCloser interface {
	Conn
	HalfCloses() // does nothing
}

// Limited is a Conn that can bound what the peer sends in all, as long as the peer
// has not said who it is.
type Limited interface {
	Conn
	// LimitTotal has Read end the connection when the messages from now on exceed
	// a number of bytes; 0: never. It must not be called while Read runs.
	LimitTotal(bytes int64)
}

// errTotal says that the peer has sent more than LimitTotal.
func errTotal(limit int64) string {
	return fmt.Sprintf("the client sent more than %d bytes before it initialized the connection", limit)
}

// Reason says why a connection ends, with the status codes of RFC 6455 section
// 7.4.1, which transports without such codes drop.
type Reason struct {
	Code int    // 0 means CodeNormal
	Text string // at most 123 bytes; the rest is cut off
}

// The codes that this program gives.
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

// ErrClosed is returned by Read and Write after Close was called here.
var ErrClosed = errors.New("connection closed")

// PeerClosedError is returned by Read when the peer ended a WebSocket with a
// close frame.
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

// prefixBytes is how much of a message above the limit is kept, enough to find
// out which request it was.
const prefixBytes = 4 << 10

// oversize makes the error for a message of size bytes that begins with b.
func oversize(limit, size int64, b []byte) error {
	prefix := append([]byte(nil), b[:min(len(b), prefixBytes)]...)
	return &TooLargeError{Limit: limit, Size: size, Prefix: prefix}
}
