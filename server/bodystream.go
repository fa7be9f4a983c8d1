package server

import (
	"context"
	"errors"
	"io"

	"execserver/httprequest"
	"execserver/protocol"
	"execserver/rpc"
	"execserver/session"
)

// bodyStream is the body of one response on its way to the client. What comes
// from the network gathers here while the connection's writer is busy, within
// bounds; beyond them nothing is read.
type bodyStream struct {
	exchange *exchange
	id       string

	// guarded by httpRequests.mu
	data    []byte // gathered
	seq     uint64 // of the notification sent last
	queued  bool   // it is in httpRequests.ready
	ended   bool
	failure *string // set when the body is not complete
}

// pass reads the body to its end, or until ctx ends.
func (s *bodyStream) pass(ctx context.Context, body io.Reader) {
	h := s.exchange.owner
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.room.Broadcast()
	})
	defer stop()
	err := errors.New("internal error") // if something panics
	defer func() { s.finish(err) }()
	piece := make([]byte, bodyReadBytes)
	for {
		if !s.awaitRoom(ctx) {
			err = &httprequest.BodyError{Err: context.Cause(ctx)}
			return
		}
		var n int
		n, err = body.Read(piece)
		s.gather(piece[:n])
		if err != nil {
			return
		}
	}
}

// awaitRoom waits until more may be read; false means that ctx has ended. One
// piece of every stream may always wait to be sent.
func (s *bodyStream) awaitRoom(ctx context.Context) bool {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	for ctx.Err() == nil && len(s.data) > 0 &&
		(len(s.data)+bodyReadBytes > maxBodyDeltaBytes || h.gathered >= maxGatheredBytes) {
		h.room.Wait()
	}
	return ctx.Err() == nil
}

// gather adds a piece.
func (s *bodyStream) gather(piece []byte) {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(piece) == 0 {
		return
	}
	if s.data == nil {
		s.data, h.spare = h.spare, nil
	}
	s.data = append(s.data, piece...)
	h.gathered += len(piece)
	s.queueLocked()
}

// finish notes how the body ended.
func (s *bodyStream) finish(err error) {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	s.ended = true
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

// appendDelta appends the next notification http/request/bodyDelta; ok is false
// when there is none.
func (h *httpRequests) appendDelta(frame []byte) (_ []byte, ok bool) {
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
	h.gathered -= len(delta.Data)
	h.room.Broadcast()
	h.mu.Unlock()

	frame = protocol.AppendHTTPBodyDelta(frame, delta)

	h.mu.Lock()
	defer h.mu.Unlock()
	if delta.Data != nil {
		h.spare = delta.Data[:0]
	}
	return frame, true
}

// events are what a connection tells beside its replies: the events of the
// session's processes and pieces of streamed bodies, in turns.
type events struct {
	outbox *session.Outbox
	http   *httpRequests
	bodies bool // it is their turn
}

var _ rpc.Source = (*events)(nil)

// AppendEvent implements rpc.Source.
func (e *events) AppendEvent(frame []byte, sent uint64) ([]byte, bool) {
	for range 2 {
		e.bodies = !e.bodies
		ok := false
		if e.bodies {
			frame, ok = e.http.appendDelta(frame)
		} else {
			frame, ok = e.outbox.AppendEvent(frame, sent)
		}
		if ok {
			return frame, true
		}
	}
	return frame, false
}

// Acknowledged implements rpc.Source. Only processes wait for it.
func (e *events) Acknowledged(offset uint64) { e.outbox.Acknowledged(offset) }
