package server

import (
	"context"
	"errors"
	"io"

	"execserver/internal/httprequest"
	"execserver/protocol"
)

// bodyStream is the body of one response on its way to the client. While the connection's
// writer is busy, it buffers what comes from the network. When its buffer is full, it does
// not read.
type bodyStream struct {
	exchange *exchange
	id       string

	// guarded by httpRequests.mu
	data      []byte // read from the network, not sent yet
	seq       uint64 // of the last notification sent
	queued    bool   // it is in httpRequests.ready
	ended     bool
	cancelled bool    // the client wants no more of it
	failure   *string // set when the body is incomplete
}

// pass reads the body until its end, or until ctx ends.
func (s *bodyStream) pass(ctx context.Context, body io.Reader) {
	h := s.exchange.owner
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.room.Broadcast()
	})
	defer stop()
	err := errors.New("internal error") // reported if something panics
	defer func() { s.finish(err) }()
	piece := make([]byte, bodyReadBytes)
	for {
		if !s.awaitRoom(ctx) {
			err = &httprequest.BodyError{Err: context.Cause(ctx)}
			return
		}
		var n int
		n, err = body.Read(piece)
		s.add(piece[:n])
		if err != nil {
			return
		}
	}
}

// awaitRoom waits until the stream may read more. It returns false when ctx has ended.
// One piece of every stream may always wait.
func (s *bodyStream) awaitRoom(ctx context.Context) bool {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	for ctx.Err() == nil && len(s.data) > 0 &&
		(len(s.data)+bodyReadBytes > maxBodyDeltaBytes || h.buffered >= maxBufferedBytes) {
		h.room.Wait()
	}
	return ctx.Err() == nil
}

// add adds a piece.
func (s *bodyStream) add(piece []byte) {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(piece) == 0 || s.cancelled {
		return
	}
	s.data = append(s.data, piece...)
	h.buffered += len(piece)
	s.queueLocked()
}

// finish records how the body ended.
func (s *bodyStream) finish(err error) {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	s.ended = true
	if s.cancelled {
		s.exchange.endLocked()
		return
	}
	if err != io.EOF {
		text := err.Error()
		s.failure = &text
	}
	s.queueLocked()
}

func (s *bodyStream) queueLocked() {
	h := s.exchange.owner
	if !s.queued {
		s.queued = true
		h.ready = append(h.ready, s)
		h.wake()
	}
}

// AppendEvent implements rpc.Source: it appends the next notification
// http/request/bodyDelta. ok is false if there is none.
func (h *httpRequests) AppendEvent(frame []byte) (_ []byte, ok bool) {
	h.mu.Lock()
	if len(h.ready) == 0 {
		h.mu.Unlock()
		return frame, false
	}
	s := h.ready[0]
	h.ready[0] = nil
	h.ready = h.ready[1:]
	s.seq++
	delta := protocol.HTTPBodyDelta{RequestID: s.id, Seq: s.seq, Data: s.data}
	s.data, s.queued = nil, false
	switch {
	case len(delta.Data) == 0:
		delta.Done, delta.Error = true, s.failure
		s.exchange.endLocked()
	case s.ended:
		s.queueLocked()
	}
	h.buffered -= len(delta.Data)
	h.room.Broadcast()
	h.mu.Unlock()
	return protocol.AppendHTTPBodyDelta(frame, delta), true
}
