// Package rpc implements JSON-RPC connections. A [Conn] matches answers to calls in both
// directions, serves the requests of the peer, and sends it events. It bounds the memory and
// the goroutines of a connection. It knows no method names.
//
// A [Handler] serves requests. Those about one thing, such as a process, keep their order in
// a lane ([Request.Queue]); all others run concurrently, as far as the handler lets them.
// A [Source] supplies events, which the connection asks for whenever it can send one.
//
// A connection has one reader, [Conn.Run], and one writer. The reader never waits for a
// handler. It pauses while too many requests are unanswered, and while the peer does not
// read what it is sent.
package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"execserver/protocol"
	"execserver/transport"
)

// Handler serves the peer's messages. Client and server have one for each connection. The
// reader calls its methods one at a time, in order of arrival, and they must not block: long
// work belongs to [Request.Go] or into a lane.
type Handler interface {
	// Request serves a request. It, or something that it starts, must call
	// [Request.Reply] or [Request.Fail] exactly once. Params are valid until then.
	Request(*Request)

	// Notification serves a notification. An error is a protocol violation: it ends the
	// connection with the error's text. Params are valid until Notification returns. data
	// is that of a binary message, which the handler may keep, or nil.
	Notification(method string, params json.RawMessage, data []byte) error
}

// Options of a Conn. The zero value means the defaults.
type Options struct {
	Log *slog.Logger // nil: discard

	// MaxOutboundBytes bounds two things separately that wait for the peer to read. When
	// replies with a reservation reach it, no more large replies are made. When all other
	// messages reach it, no more requests are read. Default 4 MiB.
	MaxOutboundBytes int64

	// MaxPendingBytes and MaxPendingRequests bound the unanswered requests. At the bound
	// the reader pauses. Defaults: 64 MiB, and 16,384 requests, because each one that waits
	// takes about 6 KiB.
	MaxPendingBytes    int64
	MaxPendingRequests int

	// MaxMessageBytes bounds a received message that was compressed, in its plain form.
	// Default transport.DefaultMaxMessageBytes.
	MaxMessageBytes int64

	// Memory, if not nil, is called before the memory of a large received message grows by a
	// number of bytes, and with a negative number when it is free again. An error ends the
	// connection. It must not block.
	Memory func(bytes int64) error

	// Pause, if not nil, is called by the reader before every message. calling reports
	// whether a call of this side is outstanding. A nil result lets the reader read;
	// otherwise the reader waits until the channel is closed or a call begins, and calls
	// Pause again. Pause must not block.
	Pause func(calling bool) (ready <-chan struct{})

	// Lasting says that the stream stalls while its peer is out of reach and goes on later, and that
	// it notices itself when the peer is gone. No silence ends the connection then, and only pongs
	// acknowledge.
	Lasting bool
	// PingInterval is the time between two pings, by default 15 s. ProbeTimeout is how
	// long Probe waits for a sign of life, by default 1 s.
	PingInterval time.Duration
	ProbeTimeout time.Duration

	// FinishTimeout is how long the requests before the end of the peer's input may take,
	// and the peer may take to read the answers. With 0, and on a transport that is not a
	// transport.HalfCloser, the end of input ends the connection at once.
	FinishTimeout time.Duration

	// Ended, if not nil, is called once when the connection has ended, before the stream is
	// closed. What it does is done before the peer can notice the end.
	Ended func()
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxOutboundBytes <= 0 {
		o.MaxOutboundBytes = 4 << 20
	}
	if o.MaxMessageBytes <= 0 {
		o.MaxMessageBytes = transport.DefaultMaxMessageBytes
	}
	if o.MaxPendingBytes <= 0 {
		o.MaxPendingBytes = 64 << 20
	}
	if o.MaxPendingRequests <= 0 {
		o.MaxPendingRequests = 16384
	}
	if o.PingInterval <= 0 {
		o.PingInterval = 15 * time.Second
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = time.Second
	}
	return o
}

// Conn is one connection. Any goroutine may call any method except Run.
type Conn struct {
	stream   transport.Conn
	pinger   transport.Pinger // nil if the transport has no pings
	finishes bool             // the peer may end its input and continue to read
	handler  Handler
	opts     Options
	log      *slog.Logger
	reading  *buffer // that the reader fills

	ctx    context.Context
	cancel context.CancelCauseFunc
	closed sync.Once
	ended  chan struct{} // closed when the stream is closed

	waits      context.Context // of requests that wait for an event
	endWaits   context.CancelFunc
	inputEnded atomic.Bool // the peer will send nothing more
	cleanClose atomic.Bool // see ClosedCleanly

	goMu       sync.Mutex
	goroutines int           // of this connection, except that of Run
	gone       chan struct{} // closed when Wait was called and no goroutine is left; nil before Wait

	lanes             Lanes // order the requests that need an order
	pool, heavy       pool
	files, heavyFiles pool
	out               outbound
	texts             [][]byte // of the writer: the messages of one write
	work              admission

	acceptsBinary bool // of the reader; see AcceptBinary
	sendsBinary   atomic.Bool

	acceptsCompressed bool // of the reader; see AcceptCompressed
	sendsCompressed   atomic.Bool
	compressor        Compressor

	life  heartbeat
	calls pendingCalls
}

// New returns a connection over a stream. It reads and writes nothing before Run.
func New(stream transport.Conn, handler Handler, opts *Options) *Conn {
	c := &Conn{stream: stream, handler: handler, ended: make(chan struct{})}
	if opts != nil {
		c.opts = *opts
	}
	c.opts = c.opts.withDefaults()
	c.log = c.opts.Log
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.waits, c.endWaits = context.WithCancel(c.ctx)
	c.pool = pool{conn: c, size: poolSize}
	c.heavy = pool{conn: c, size: heavyPoolSize}
	c.files = pool{conn: c, size: poolSize}
	c.heavyFiles = pool{conn: c, size: heavyPoolSize}
	c.out.init(c.opts.MaxOutboundBytes)
	c.work.init(c.opts.MaxPendingBytes, c.opts.MaxPendingRequests)
	c.calls.init()
	if pinger, ok := stream.(transport.Pinger); ok {
		c.pinger = pinger
		pinger.OnPong(c.pong)
	}
	if growing, ok := stream.(transport.Growing); ok && c.opts.Memory != nil {
		growing.OnGrow(func(bytes int64) error { return c.reading.grow(bytes, c.opts.Memory) })
	}
	_, halfCloses := stream.(transport.HalfCloser)
	c.finishes = halfCloses && c.opts.FinishTimeout > 0
	return c
}

// flushTimeout is how long Close waits for the peer to read the queued messages.
const flushTimeout = time.Second

// ErrPeerClosed is the cause when the peer closed the connection in order.
var ErrPeerClosed = errors.New("peer closed the connection")

// Run reads until the connection ends and returns why: ErrPeerClosed, the cause passed to
// Close, or the error of the stream. It cancels the context of requests that are still being served;
// Wait waits for them.
//
// Where a peer may end its input and continue to read, Run then finishes the requests
// that came before the end; see [Options.FinishTimeout].
func (c *Conn) Run() error {
	c.start(c.writeLoop)
	if c.pinger != nil && !c.opts.Lasting {
		c.start(c.heartbeatLoop)
	}
	err := c.readLoop()
	if peer, ok := errors.AsType[*transport.PeerClosedError](err); ok {
		c.cleanClose.Store(peer.Reason.Code == transport.CodeNormal)
	}
	if errors.Is(err, io.EOF) {
		err = ErrPeerClosed
		if c.finishes {
			c.cleanClose.Store(c.finish())
		}
	}
	c.Close(goingAway, err) // not a clean close, so the peer may reconnect
	c.calls.fail(context.Cause(c.ctx))
	return context.Cause(c.ctx)
}

// finish waits for the requests that came before the end of input, and reports whether the
// peer was sent all answers, and every event that the writer had taken. Requests that wait for
// an event stop waiting. All others, and the peer's reading, have FinishTimeout.
func (c *Conn) finish() (complete bool) {
	c.inputEnded.Store(true)
	c.endWaits()
	timeout := time.NewTimer(c.opts.FinishTimeout)
	defer timeout.Stop()
	for _, end := range []func() <-chan struct{}{c.work.idle, c.out.end} {
		select {
		case <-end():
		case <-timeout.C:
			c.log.Warn("abandoned requests before the end of input", "timeout", c.opts.FinishTimeout)
			return false
		case <-c.ctx.Done():
			return false
		}
	}
	return !c.out.abandoned()
}

// ClosedCleanly reports whether the peer ended the connection in order: by a close frame with
// the code 1000, or, where it may end its input and continue to read, by the end of its
// input, with every request answered and every answer written. The result is final once
// Context is cancelled.
func (c *Conn) ClosedCleanly() bool { return c.cleanClose.Load() }

// Wait waits until every goroutine of the connection has ended. Run must have returned.
func (c *Conn) Wait() {
	c.lanes.WaitIdle()
	c.goMu.Lock()
	if c.gone == nil {
		c.gone = make(chan struct{})
		c.endIfIdleLocked()
	}
	c.goMu.Unlock()
	<-c.gone
}

// start runs f on a goroutine that Wait waits for, unless Wait has found that none is left. A
// goroutine may therefore always start another one: the requests that waited for its own are
// dropped there, which frees what they hold.
func (c *Conn) start(f func()) {
	c.goMu.Lock()
	defer c.goMu.Unlock()
	if c.gone != nil && c.goroutines == 0 {
		return
	}
	c.goroutines++
	go func() {
		defer func() {
			c.goMu.Lock()
			defer c.goMu.Unlock()
			c.goroutines--
			c.endIfIdleLocked()
		}()
		f()
	}()
}

// endIfIdleLocked ends Wait if no goroutine is left.
func (c *Conn) endIfIdleLocked() {
	if c.gone != nil && c.goroutines == 0 {
		close(c.gone)
	}
}

// Context returns a context that is cancelled when the connection ends, with the reason as
// its cause.
func (c *Conn) Context() context.Context { return c.ctx }

// Close sends the queued messages, if the peer reads them within a second, and ends the
// connection.
// The peer receives reason if the transport can carry it; cause becomes the cause of the
// context. Only the first call has an effect.
func (c *Conn) Close(reason transport.Reason, cause error) {
	c.closed.Do(func() {
		c.cancel(cause) // and with it waits
		c.out.finish()
		c.work.release()
		c.start(func() {
			if c.opts.Ended != nil {
				c.opts.Ended()
			}
			select {
			case <-c.out.done:
			case <-time.After(flushTimeout):
			}
			_ = c.stream.Close(reason)
			close(c.ended)
		})
	})
}

// Closed returns a channel that is closed when the stream is closed. From then on nothing
// is sent. The reader may still be in a Read that cannot be interrupted.
func (c *Conn) Closed() <-chan struct{} { return c.ended }

// readLoop reads and dispatches messages until the stream fails.
func (c *Conn) readLoop() error {
	for {
		c.work.admit()
		c.out.admit()
		c.pause()
		buf := buffers.get()
		c.reading = buf
		c.life.listen()
		msg, err := c.stream.Read(buf.b)
		c.life.listen()
		var tooLarge *transport.TooLargeError
		switch {
		case errors.As(err, &tooLarge):
			buffers.put(buf)
			c.life.hear()
			c.refuse(tooLarge)
		case err != nil:
			buffers.put(buf)
			return err
		default:
			c.life.hear()
			buf.b = msg
			if err := c.dispatch(buf); err != nil {
				c.violate(err)
			}
		}
	}
}

// pause waits while Options.Pause demands it.
func (c *Conn) pause() {
	for c.opts.Pause != nil && c.ctx.Err() == nil {
		calling, called := c.calls.pending()
		ready := c.opts.Pause(calling)
		if ready == nil {
			return
		}
		select {
		case <-ready:
		case <-called:
		case <-c.ctx.Done():
		}
	}
}

// dispatch serves one message. It passes the buffer on or releases it.
func (c *Conn) dispatch(buf *buffer) error {
	buf, err := c.expand(buf)
	if err != nil {
		buffers.put(buf)
		return err
	}
	m, binary, err := c.parse(buf.b)
	if err != nil {
		defer buffers.put(buf)
		switch {
		case binary:
			return fmt.Errorf("malformed binary message: %w", err)
		case beginsHTTP(buf.b):
			return errors.New("this is a request of HTTP")
		}
		c.fail(protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "malformed message: %s", err))
		return nil
	}
	if c.ctx.Err() != nil {
		buffers.put(buf)
		return nil
	}
	switch m.Kind {
	case protocol.Request:
		r := &Request{ID: m.ID, Method: m.Method, Params: m.Params, Data: m.Data, Trace: m.Trace, conn: c, buf: buf, size: int64(len(buf.b))}
		c.work.add(r.size)
		r.guard(func() { c.handler.Request(r) })
	case protocol.Notification:
		defer buffers.put(buf)
		return c.notify(m.Method, m.Params, keepData(m.Data, buf))
	default:
		defer buffers.put(buf)
		m.Data = keepData(m.Data, buf)
		if !c.calls.answer(m) {
			c.log.Warn("ignored a reply without a request", "id", m.ID.String())
		}
	}
	return nil
}

// beginsHTTP reports whether a line is the first one of a request of HTTP. A web page can have a
// browser send one to a port that is forwarded to a unix socket, with a method and a body of its
// choice, so the body must not be read as messages.
func beginsHTTP(line []byte) bool {
	return bytes.HasSuffix(line, []byte(" HTTP/1.1")) || bytes.HasSuffix(line, []byte(" HTTP/1.0"))
}

// notify lets the handler serve a notification. A panic ends only that.
func (c *Conn) notify(method string, params json.RawMessage, data []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.logPanic("a notification", method, v)
		}
	}()
	return c.handler.Notification(method, params, data)
}

// refuse answers a message above the limit.
func (c *Conn) refuse(tooLarge *transport.TooLargeError) {
	c.log.Warn("message refused", "error", tooLarge)
	id, answer := protocol.GuessID(tooLarge.Prefix)
	if answer {
		c.calls.refuse(id, tooLarge)
		return
	}
	c.fail(id, protocol.Errorf(protocol.CodeInvalidRequest, "%s", tooLarge))
}

// violate ends the connection because the peer violated the protocol.
func (c *Conn) violate(err error) {
	err = &violation{err}
	c.log.Warn("protocol violation", "error", err)
	c.fail(protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
	c.Close(transport.Reason{Code: transport.CodeProtocolError, Text: err.Error()}, err)
}

// violation is an error that may quote the peer at any length.
type violation struct{ err error }

func (v *violation) Error() string { return protocol.Shorten(v.err.Error()) }
func (v *violation) Unwrap() error { return v.err }

// fail queues an error reply.
func (c *Conn) fail(id protocol.ID, e *protocol.Error) {
	c.out.put(protocol.AppendErrorResponse(nil, id, e), nil)
}

var panics atomic.Uint64

// logPanic logs a panic of a handler under a number that the peer may see.
func (c *Conn) logPanic(what, method string, v any) (incident uint64) {
	incident = panics.Add(1)
	c.log.Error("panic while serving "+what, "method", method, "incident", incident,
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	return incident
}
