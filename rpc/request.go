package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"execserver/protocol"
)

// Request is one request of the peer, until it is answered.
type Request struct {
	ID     protocol.ID
	Method string
	Params json.RawMessage // nil when absent; valid until the reply

	conn     *Conn
	buf      *buffer
	size     int64 // of the message
	reserved *reservation
	waiting  atomic.Bool // in Reserve
	answered atomic.Bool
}

// Conn returns the connection that the request came on.
func (r *Request) Conn() *Conn { return r.conn }

// Size is the size of the request's message in bytes.
func (r *Request) Size() int64 { return r.size }

// Context is cancelled when the connection ends.
func (r *Request) Context() context.Context { return r.conn.ctx }

// WaitContext is for a request that waits for something to happen. It is
// cancelled when the connection ends, and when the peer's input has ended: the
// request then answers with what there is.
func (r *Request) WaitContext() context.Context { return r.conn.waits }

// Go serves the rest of the request on a goroutine of its own.
func (r *Request) Go(f func()) {
	r.conn.start(func() { r.guard(f) })
}

// Pool serves the rest of the request as soon as one of a bounded number of
// goroutines is free. One that takes longer than [Options.Patience], other than
// in Reserve, does not count any more.
func (r *Request) Pool(f func()) { r.pool(&r.conn.pool, f) }

// HeavyPool is Pool for what takes much memory: fewer run at the same time.
func (r *Request) HeavyPool(f func()) { r.pool(&r.conn.heavy, f) }

func (r *Request) pool(p *pool, f func()) {
	p.submit(&task{patient: &r.waiting, run: func() {
		if r.conn.ctx.Err() != nil {
			r.Drop()
			return
		}
		r.guard(f)
	}})
}

// Queue serves the rest of the request in the lane of key; see [Lanes.Submit].
func (r *Request) Queue(key string, urgent, quick bool, f func(*Lane)) {
	r.conn.Lanes.Submit(key, urgent, quick, func(lane *Lane) {
		if r.conn.ctx.Err() != nil {
			r.Drop()
			return
		}
		r.guard(func() { f(lane) })
	})
}

// Reserve waits until a reply of about n bytes may be made without more waiting
// for the peer than the connection allows; n bytes of memory may be filled then.
// Reservations are granted in order of arrival. One that the request has already
// is given back first: nobody waits while holding. It fails when the connection
// ends.
func (r *Request) Reserve(n int) error {
	if r.reserved != nil {
		r.conn.out.room.giveBack(r.reserved)
		r.reserved = nil
	}
	r.waiting.Store(true)
	defer r.waiting.Store(false)
	reserved, err := r.conn.out.room.reserve(int64(n))
	r.reserved = reserved
	return err
}

// Grow makes the request's reservation one of n bytes if that needs no waiting,
// and reports whether it did. Otherwise the request has to give up what it has
// made, and to reserve anew.
func (r *Request) Grow(n int) bool { return r.conn.out.room.grow(r.reserved, int64(n)) }

// Encoded is the answer to a request, begun by [Request.Begin].
type Encoded []byte

// Begin begins an answer with room for a result of n bytes. The caller appends
// the result as JSON and passes the answer on to Reply.
func (r *Request) Begin(n int) Encoded { return protocol.BeginResponse(r.ID, n) }

// Reply answers the request. A result that is a protocol.Appender encodes
// itself; one that is Encoded is encoded already, and its memory passes to the
// connection.
func (r *Request) Reply(result any) {
	var msg []byte
	var err error
	if encoded, ok := result.(Encoded); ok {
		msg = append(encoded, '}')
	} else {
		msg, err = protocol.AppendResponse(nil, r.ID, result)
	}
	if err == nil && len(msg) > protocol.MaxAnswerBytes {
		err = protocol.Errorf(protocol.CodeInvalidRequest,
			"the answer to %s is %d bytes long, the limit is %d; ask for less", r.Method, len(msg), protocol.MaxAnswerBytes)
	}
	if err != nil {
		r.Fail(err)
		return
	}
	r.send(msg)
}

// Fail answers the request with an error; the *protocol.Error inside err goes
// out as it is.
func (r *Request) Fail(err error) {
	r.send(protocol.AppendErrorResponse(nil, r.ID, protocol.AsError(err)))
}

func (r *Request) send(msg []byte) {
	if r.answered.Swap(true) {
		r.conn.log.Error("request answered twice", "method", r.Method, "id", r.ID.String())
		return
	}
	r.conn.out.put(msg, r.reserved)
	r.release() // last: a connection without requests has every answer queued
}

// Drop ends a request without an answer, its connection being gone.
func (r *Request) Drop() {
	if !r.answered.Swap(true) {
		if r.reserved != nil {
			r.conn.out.room.giveBack(r.reserved)
		}
		r.release()
	}
}

func (r *Request) release() {
	r.conn.work.done(r.size)
	r.Params = nil
	buffers.put(r.buf)
}

var panics atomic.Uint64

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

// logPanic logs a panic of a handler under a number that the peer may know.
func (c *Conn) logPanic(what, method string, v any) (incident uint64) {
	incident = panics.Add(1)
	c.log.Error("panic while serving "+what, "method", method, "incident", incident,
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	return incident
}

// admission bounds the requests that are not answered yet.
type admission struct {
	maxBytes int64
	maxCount int

	mu       sync.Mutex
	changed  sync.Cond
	bytes    int64
	count    int
	released bool
	quiet    chan struct{} // closed when count is 0; made on demand
}

func (a *admission) init(maxBytes int64, maxCount int) {
	a.maxBytes, a.maxCount = maxBytes, maxCount
	a.changed.L = &a.mu
}

// admit waits until another request may be read.
func (a *admission) admit() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.released && (a.bytes > a.maxBytes || a.count > a.maxCount) {
		a.changed.Wait()
	}
}

// busy reports whether there are requests that are not answered yet.
func (a *admission) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count > 0
}

func (a *admission) add(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes += bytes
	a.count++
}

func (a *admission) done(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes -= bytes
	a.count--
	if a.count == 0 && a.quiet != nil {
		close(a.quiet)
		a.quiet = nil
	}
	a.changed.Signal()
}

// idle returns a channel that is closed when every request is answered. The
// reader must have stopped.
func (a *admission) idle() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	quiet := make(chan struct{})
	if a.count == 0 {
		close(quiet)
		return quiet
	}
	a.quiet = quiet
	return quiet
}

// release lets the reader pass for good.
func (a *admission) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released = true
	a.changed.Signal()
}

// buffer holds one message that was read.
type buffer struct{ b []byte }

// keepBytes is the largest buffer worth keeping for any message.
const keepBytes = 64 << 10

// buffers recycles the memory of messages.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) get() *buffer {
	if b, ok := p.pool.Get().(*buffer); ok {
		return b
	}
	return new(buffer)
}

func (p *bufferPool) put(b *buffer) {
	if cap(b.b) > keepBytes {
		b.b = nil
	}
	p.pool.Put(b)
}
