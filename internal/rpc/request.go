package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"

	"execserver/protocol"
)

// Request is one request of the peer until it is answered.
type Request struct {
	ID     protocol.ID
	Method string
	Params json.RawMessage // nil when absent; valid until the reply
	Data   []byte          // of a binary message, else nil; valid until the reply
	Trace  protocol.TraceContext

	conn     *Conn
	buf      *buffer
	size     int64 // of the message
	reserved *reservation
	answered atomic.Bool
	then     []func(error) // called with the outcome; see Then
}

// ErrDropped is the outcome of a request that has no answer; see [Request.Then].
var ErrDropped = errors.New("the connection ended before the answer")

// Then registers f, which is called once with the outcome: nil for a result, the error of the
// answer, or ErrDropped. f must not block. Only the Handler may call Then, before anything can
// answer the request. It may call Then several times.
func (r *Request) Then(f func(error)) { r.then = append(r.then, f) }

// Context returns a context that is cancelled when the connection ends.
func (r *Request) Context() context.Context { return r.conn.ctx }

// WaitContext returns the context of a request that waits for an event. It is cancelled
// when the connection ends, and when the peer's input has ended: the request must then answer
// without waiting further.
func (r *Request) WaitContext() context.Context { return r.conn.waits }

// Go serves the rest of the request on a new goroutine.
func (r *Request) Go(f func()) {
	r.conn.start(func() { r.guard(f) })
}

// Pool serves the rest of the request as soon as one of a bounded number of goroutines is
// free.
func (r *Request) Pool(f func()) { r.pool(&r.conn.pool, f) }

// HeavyPool is like Pool, for requests that need much memory: fewer run at the same time.
func (r *Request) HeavyPool(f func()) { r.pool(&r.conn.heavy, f) }

// FilePool is like Pool, for requests that use a file system. A file system that hangs
// holds up these alone.
func (r *Request) FilePool(f func()) { r.pool(&r.conn.files, f) }

// HeavyFilePool is like HeavyPool, for requests that use a file system.
func (r *Request) HeavyFilePool(f func()) { r.pool(&r.conn.heavyFiles, f) }

func (r *Request) pool(p *pool, f func()) {
	p.submit(func() {
		if r.conn.ctx.Err() != nil {
			r.Drop()
			return
		}
		r.guard(f)
	})
}

// Queue serves the rest of the request in the lane of key; see [Lanes.Submit].
func (r *Request) Queue(key string, urgency Urgency, f func(*Lane)) {
	r.conn.lanes.Submit(key, urgency, func(lane *Lane) {
		if r.conn.ctx.Err() != nil {
			r.Drop()
			return
		}
		r.guard(func() { f(lane) })
	})
}

// Reserve waits until the request may use n bytes of memory for its reply. Reservations are
// granted in order of arrival, small ones apart from large ones. Reserve first releases a
// reservation that the request holds already, so no request waits while it holds one. It fails
// when the connection ends.
func (r *Request) Reserve(n int) error { return r.reserve(r.conn.out.replies, n) }

// ReserveFile is like Reserve, for a request that uses a file system. Such requests wait
// for each other, and others do not wait for them.
func (r *Request) ReserveFile(n int) error { return r.reserve(r.conn.out.fileReplies, n) }

func (r *Request) reserve(m *reservations, n int) (err error) {
	if r.reserved != nil {
		r.reserved.release()
	}
	r.reserved, err = m.reserve(int64(n))
	return err
}

// GrowFile changes the request's reservation of ReserveFile to n bytes if that needs no
// waiting, and reports whether it did. If not, the request must drop its unfinished reply and
// reserve again.
func (r *Request) GrowFile(n int) bool { return r.conn.out.fileReplies.grow(r.reserved, int64(n)) }

// Encoded is an encoded answer to a request, begun by [Request.Begin].
type Encoded []byte

// Begin starts an answer with capacity for a result of n bytes. The caller appends the result
// as JSON and passes the answer to Reply.
func (r *Request) Begin(n int) Encoded { return protocol.BeginResponse(r.ID, n) }

// BeginBinary is like Begin, for a result that is {} with data. The caller appends the
// data as it is. ok is false if the peer does not accept binary messages.
func (r *Request) BeginBinary(n int) (answer Encoded, ok bool) {
	if !r.conn.SendsBinary() {
		return nil, false
	}
	var space [512]byte
	head := append(protocol.AppendResult(space[:0], r.ID), `{}}`...)
	return protocol.AppendBinary(make([]byte, 0, n+len(head)+8), head, nil), true
}

// Reply answers the request. A result that is a protocol.Appender encodes itself. An
// Encoded result is encoded already, and the connection owns its memory from then on.
func (r *Request) Reply(result any) {
	var msg []byte
	var err error
	if encoded, ok := result.(Encoded); ok {
		if protocol.IsBinary(encoded) {
			msg = r.conn.compress(nil, encoded)
		} else {
			msg = append(encoded, '}')
		}
	} else {
		msg, err = r.conn.encode(result, func(b []byte, result any) ([]byte, error) {
			return protocol.AppendResponse(b, r.ID, result)
		})
	}
	if err == nil && len(msg) > protocol.MaxAnswerBytes {
		err = protocol.Errorf(protocol.CodeInvalidRequest,
			"the answer to %s is %d bytes long, the limit is %d; ask for less", r.Method, len(msg), protocol.MaxAnswerBytes)
	}
	if err != nil {
		r.Fail(err)
		return
	}
	r.send(msg, nil)
}

// Fail answers the request with an error. It sends the *protocol.Error inside err
// unchanged.
func (r *Request) Fail(err error) {
	answer := protocol.AsError(err)
	r.send(protocol.AppendErrorResponse(nil, r.ID, answer), answer)
}

func (r *Request) send(msg []byte, failure error) {
	if r.answered.Swap(true) {
		r.conn.log.Error("request answered twice", "method", r.Method, "id", r.ID.String())
		return
	}
	r.conn.out.put(msg, r.reserved)
	r.end(failure)
}

// Drop ends a request without an answer, because its connection has ended.
func (r *Request) Drop() {
	if !r.answered.Swap(true) {
		if r.reserved != nil {
			r.reserved.release()
		}
		r.end(ErrDropped)
	}
}

// end reports the outcome and releases the memory of the request.
func (r *Request) end(outcome error) {
	for _, f := range r.then {
		f(outcome)
	}
	// Last: a connection without requests has queued every answer.
	r.conn.work.done(r.size)
	r.Params, r.Data = nil, nil
	buffers.put(r.buf)
}

// guard turns a panic of a handler into an internal error of this request.
func (r *Request) guard(f func()) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		incident := r.conn.logPanic("a request", r.Method, v)
		if !r.answered.Load() {
			r.Fail(protocol.Errorf(protocol.CodeInternal,
				"internal error while serving %s (incident %d, see the server's log)", r.Method, incident))
		}
	}()
	f()
}
