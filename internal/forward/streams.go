// Package forward carries forwarded connections over one connection of the protocol
// (EXTENSIONS.md, "tcpOpen"). Client and server use the same code: both have
// a [Streams] for each connection, with a [Stream] for each forwarded connection. The
// package opens no sockets and knows no RPC.
//
// Start at [Stream.Write], [Streams.AppendEvent] and [Streams.Notify], through which every
// byte passes in that order.
package forward

import (
	"encoding/json"
	"fmt"
	"sync"

	"execserver/protocol"
)

// Window is how many bytes one side of a stream may send before the other side has
// consumed them. It bounds the memory of a stream whose reader does not read.
const Window = 1 << 20

// maxChunk bounds the bytes of one notification, and those that a stream holds because
// they cannot be sent yet.
const maxChunk = 64 << 10

// Streams are the streams of one connection. It is an rpc.Source. All methods may be
// called concurrently.
type Streams struct {
	wake   func()      // wakes the writer; see AppendEvent
	binary func() bool // whether to send data as binary messages

	mu     sync.Mutex
	open   map[string]*Stream // those of which both sides know
	ready  []*Stream          // those with something to send, in turns
	opened bool               // there was one
	ended  error              // why the connection has ended
}

// New returns the Streams of a connection. Streams calls wake when it has a notification to
// send, and binary to decide whether to send data as binary messages. They must not block.
func New(wake func(), binary func() bool) *Streams {
	return &Streams{wake: wake, binary: binary, open: make(map[string]*Stream)}
}

// Open adds a stream of which the peer may send [Window] bytes. The caller must end it.
// Open fails if the id is in use, or the connection has ended.
func (s *Streams) Open(id string) (*Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = true
	switch {
	case s.ended != nil:
		return nil, s.ended
	case s.open[id] != nil:
		return nil, fmt.Errorf("stream `%s` is open already", id)
	}
	stream := newStream(s, id)
	s.open[id] = stream
	return stream, nil
}

// Close ends all streams, because the connection has ended.
func (s *Streams) Close(cause error) {
	s.mu.Lock()
	if s.ended == nil {
		s.ended = cause
	}
	var callbacks []func()
	for _, stream := range s.open {
		callbacks = append(callbacks, stream.failLocked(cause))
	}
	s.mu.Unlock()
	for _, callback := range callbacks {
		callback()
	}
}

// Notify handles a notification of the peer, and reports whether it is one about streams.
// data is that of a binary message, or nil. An error is a protocol violation. Notify does
// not block, and retains neither params nor data.
func (s *Streams) Notify(method string, params json.RawMessage, data []byte) (ours bool, err error) {
	switch method {
	case protocol.NotificationTCPData:
		err = notify(s, params, data, func(d protocol.TCPData) (string, func(*Stream) error) {
			return d.StreamID, func(stream *Stream) error { return stream.receiveLocked(d.Chunk) }
		})
	case protocol.NotificationTCPCredit:
		err = notify(s, params, data, func(c protocol.TCPMoreCredit) (string, func(*Stream) error) {
			return c.StreamID, func(stream *Stream) error { return stream.creditLocked(int64(c.Bytes)) }
		})
	case protocol.NotificationTCPEnd:
		err = notify(s, params, data, func(e protocol.TCPEnd) (string, func(*Stream) error) {
			return e.StreamID, (*Stream).receiveEndLocked
		})
	case protocol.NotificationTCPReset:
		err = s.reset(params, data)
	default:
		return false, nil
	}
	if err != nil {
		err = fmt.Errorf("`%s`: %w", method, err)
	}
	return true, err
}

// notify decodes a notification and passes it to its stream. It ignores notifications about
// a stream that this side has ended, because they may have been sent before the peer knew.
func notify[P any](s *Streams, params json.RawMessage, data []byte, about func(P) (id string, serve func(*Stream) error)) error {
	p, err := protocol.DecodeBulk[P](params, data)
	if err != nil {
		return err
	}
	id, serve := about(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		return fmt.Errorf("it was sent before `%s`", protocol.MethodTCPOpen)
	}
	if stream := s.open[id]; stream != nil {
		return serve(stream)
	}
	return nil
}

// reset serves the notification tcp/reset.
func (s *Streams) reset(params json.RawMessage, data []byte) error {
	callback := func() {}
	err := notify(s, params, data, func(r protocol.TCPReset) (string, func(*Stream) error) {
		return r.StreamID, func(stream *Stream) error {
			callback = stream.failLocked(&ResetError{protocol.Shorten(r.Message)})
			return nil
		}
	})
	callback()
	return err
}

// AppendEvent implements rpc.Source: it appends the next notification of the streams, round
// robin. ok is false if there is none.
func (s *Streams) AppendEvent(msg []byte) (_ []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ready) > 0 {
		stream := s.ready[0]
		s.ready[0] = nil
		s.ready = s.ready[1:]
		stream.queued = false
		if msg, ok = stream.appendNextLocked(msg); ok {
			stream.queueLocked()
			return msg, true
		}
	}
	return msg, false
}
