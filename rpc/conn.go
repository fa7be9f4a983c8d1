// Package rpc runs one JSON-RPC connection: it correlates calls in both
// directions, keeps the order that matters, bounds what waits, and owns the two
// goroutines that read and write. It knows no method names.
//
// Start at [Conn.Run], the reader, and [Conn.writeLoop], the writer; a
// [Handler] says what requests do, a [Source] supplies the events.
package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"execserver/protocol"
	"execserver/transport"
)

// Handler serves what the peer sends. Its methods are called by the reader, one
// at a time and in order of arrival, and must not block: work that may take
// long goes to [Request.Go] or into a lane.
type Handler interface {
	// Request serves a request; it or something it started must call
	// [Request.Reply] or [Request.Fail] exactly once. Params are valid until
	// then.
	Request(*Request)

	// Notification serves a notification. An error is a protocol violation
	// and ends the connection with the error's text. Params are valid until
	// it returns.
	Notification(method string, params json.RawMessage) error
}

// Source supplies events to a connection whenever its writer is free, so that
// nothing is encoded before it can be sent and what waits can still be gathered
// into larger pieces. Call [Conn.Wake] when there is something new.
type Source interface {
	// AppendEvent appends the next event to frame; ok is false when there is
	// none. sent is the number of bytes of events sent before this frame; once
	// the frame is sent it is sent plus the frame's length. What was replied
	// before the event came to be is sent before it. Called by the writer
	// alone.
	AppendEvent(frame []byte, sent uint64) (result []byte, ok bool)

	// Acknowledged says that the peer has everything up to the offset. It must
	// not block.
	Acknowledged(offset uint64)
}

// Options of a Conn. The zero value means the defaults.
type Options struct {
	Log *slog.Logger // nil: discard

	// MaxOutboundBytes bounds the replies that wait for the peer to read, those
	// that were reserved and all others, each: beyond it large replies are not
	// made and requests not read. Default 4 MiB.
	MaxOutboundBytes int64

	// MaxPendingBytes and MaxPendingRequests bound the requests that are not
	// answered yet; at the bound the reader pauses. Defaults 64 MiB, 65,536.
	MaxPendingBytes    int64
	MaxPendingRequests int

	// Hold, if not nil, is asked by the reader before every message whether it
	// may read, and whether calls of ours wait for their answers. It returns nil
	// for yes. Otherwise the reader asks again when the channel is closed or a
	// call begins. Hold must not block.
	Hold func(calling bool) (room <-chan struct{})

	// Patience is for how long a request keeps its place in the pool, and its
	// reservation, when others wait for one; default 1 s.
	Patience time.Duration

	// PingInterval is the time between two pings, default 15 s; ProbeTimeout
	// how long Probe waits for a sign of life, default 1 s.
	PingInterval time.Duration
	ProbeTimeout time.Duration

	// DrainTimeout is how long the requests before the end of the peer's input
	// have to finish, and the peer to read their answers. With 0, and on a
	// transport that is no transport.HalfCloser, the end of input ends the
	// connection at once.
	DrainTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxOutboundBytes <= 0 {
		o.MaxOutboundBytes = 4 << 20
	}
	if o.MaxPendingBytes <= 0 {
		o.MaxPendingBytes = 64 << 20
	}
	if o.MaxPendingRequests <= 0 {
		o.MaxPendingRequests = 65536
	}
	if o.Patience <= 0 {
		o.Patience = time.Second
	}
	if o.PingInterval <= 0 {
		o.PingInterval = 15 * time.Second
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = time.Second
	}
	return o
}

// Conn is one connection. All methods may be called by any goroutine, but for
// Run.
type Conn struct {
	stream  transport.Conn
	pinger  transport.Pinger // nil when the transport has no pings
	drains  bool             // the peer may end its input and read on
	handler Handler
	opts    Options
	log     *slog.Logger

	ctx    context.Context
	cancel context.CancelCauseFunc
	closed sync.Once
	ended  chan struct{} // closed when the stream has been

	waits      context.Context // of requests that wait for something to happen
	endWaits   context.CancelFunc
	inputEnded atomic.Bool // the peer will send nothing more
	farewell   atomic.Bool // see Farewell

	// goMu guards gone, and wg against starting something while Wait waits.
	goMu sync.Mutex
	gone bool
	wg   sync.WaitGroup // everything started for this connection but Run itself

	// Lanes orders the requests of this connection that need it.
	Lanes Lanes

	pool  pool
	heavy pool
	out   outbound
	texts [][]byte // of the writer: what goes out together
	work  admission

	sent  atomic.Uint64 // bytes of events handed to the stream
	life  heartbeat
	calls pendingCalls
}

// New makes a connection of a stream. Nothing is read or written before Run.
func New(stream transport.Conn, handler Handler, opts *Options) *Conn {
	c := &Conn{stream: stream, handler: handler, ended: make(chan struct{})}
	if opts != nil {
		c.opts = *opts
	}
	c.opts = c.opts.withDefaults()
	c.log = c.opts.Log
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.waits, c.endWaits = context.WithCancel(c.ctx)
	c.pool = pool{conn: c, size: poolSize, maxOverdue: maxOverdue, patience: c.opts.Patience}
	c.heavy = pool{conn: c, size: heavyPoolSize, maxOverdue: heavyMaxOverdue, patience: c.opts.Patience}
	c.out.init(c.opts.MaxOutboundBytes, c.opts.Patience, c.work.busy)
	c.work.init(c.opts.MaxPendingBytes, c.opts.MaxPendingRequests)
	c.calls.init()
	if pinger, ok := stream.(transport.Pinger); ok {
		c.pinger = pinger
		pinger.OnPong(c.pong)
	}
	_, halfCloses := stream.(transport.HalfCloser)
	c.drains = halfCloses && c.opts.DrainTimeout > 0
	return c
}

// flushTimeout is how long Close waits for the peer to read what is queued.
const flushTimeout = time.Second

// ErrPeerClosed is the cause when the peer ended the connection in an orderly
// way.
var ErrPeerClosed = errors.New("peer closed the connection")

// Run reads until the connection ends and returns why: ErrPeerClosed, the error
// given to Close, or what broke. Requests still being served then have their
// context cancelled; Wait waits for them.
//
// Where a peer may end its input and read on, Run then finishes the requests that
// came before the end; see [Options.DrainTimeout].
func (c *Conn) Run() error {
	c.start(c.writeLoop)
	if c.pinger != nil {
		c.start(c.heartbeatLoop)
	}
	err := c.readLoop()
	if peer, ok := errors.AsType[*transport.PeerClosedError](err); ok {
		c.farewell.Store(peer.Reason.Code == transport.CodeNormal)
	}
	if errors.Is(err, io.EOF) {
		err = ErrPeerClosed
		if c.drains {
			c.farewell.Store(c.drain())
		}
	}
	c.Close(goingAway, err) // a peer that reads it may come back: it has said no farewell
	c.calls.fail(context.Cause(c.ctx))
	return context.Cause(c.ctx)
}

// drain finishes the requests that came before the end of input, and reports
// whether the peer has been sent all answers. Requests that wait for something
// to happen end their wait; all others have DrainTimeout, as the peer has to
// read.
func (c *Conn) drain() (complete bool) {
	c.inputEnded.Store(true)
	c.endWaits()
	timeout := time.NewTimer(c.opts.DrainTimeout)
	defer timeout.Stop()
	for _, idle := range []func() <-chan struct{}{c.work.idle, c.out.idle} {
		select {
		case <-idle():
		case <-timeout.C:
			c.log.Warn("requests before the end of input given up", "timeout", c.opts.DrainTimeout)
			return false
		case <-c.ctx.Done():
			return false
		}
	}
	return !c.out.abandoned()
}

// Farewell reports whether the peer ended the connection in an orderly way: by a
// close frame with the code 1000, or, where it may end its input and read on, by
// the end of its input, with every request answered and every answer written. It
// is final once Context is cancelled.
func (c *Conn) Farewell() bool { return c.farewell.Load() }

// Wait waits until everything that the connection started is gone. Run must
// have returned.
func (c *Conn) Wait() {
	c.Lanes.WaitIdle()
	c.goMu.Lock()
	c.gone = true
	c.goMu.Unlock()
	c.wg.Wait()
}

// start runs f on a goroutine that Wait waits for, unless the connection is
// gone already.
func (c *Conn) start(f func()) {
	c.goMu.Lock()
	defer c.goMu.Unlock()
	if !c.gone {
		c.wg.Go(f)
	}
}

// Context is cancelled when the connection ends; its cause says why.
func (c *Conn) Context() context.Context { return c.ctx }

// Close ends the connection after what is already queued has been sent, for
// which the peer has a second. reason goes to the peer where the transport can
// carry it, cause to whoever asks for the context's cause. Only the first call
// counts.
func (c *Conn) Close(reason transport.Reason, cause error) {
	c.closed.Do(func() {
		c.cancel(cause) // and with it waits
		c.out.finish()
		c.work.release()
		c.start(func() {
			select {
			case <-c.out.done:
			case <-time.After(flushTimeout):
			}
			_ = c.stream.Close(reason)
			close(c.ended)
		})
	})
}

// Closed is closed when the stream has been: what was to be told to the peer
// has been, or never will be. The reader may still be in a Read that cannot be
// interrupted.
func (c *Conn) Closed() <-chan struct{} { return c.ended }

// readLoop reads and dispatches messages until the stream fails.
func (c *Conn) readLoop() error {
	for {
		c.work.admit()
		c.out.admit()
		c.hold()
		buf := buffers.get()
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

// hold waits as long as Options.Hold wants it.
func (c *Conn) hold() {
	for c.opts.Hold != nil && c.ctx.Err() == nil {
		calling, called := c.calls.pending()
		room := c.opts.Hold(calling)
		if room == nil {
			return
		}
		select {
		case <-room:
		case <-called:
		case <-c.ctx.Done():
		}
	}
}

// dispatch serves one message, whose buffer it passes on or gives back.
func (c *Conn) dispatch(buf *buffer) error {
	m, err := protocol.ParseMessage(buf.b)
	if err != nil {
		defer buffers.put(buf)
		text := fmt.Sprintf("failed to parse %s: %s", c.stream.Name(), err)
		c.fail(protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", text))
		return nil
	}
	if c.ctx.Err() != nil {
		buffers.put(buf)
		return nil
	}
	switch m.Kind {
	case protocol.Request:
		r := &Request{ID: m.ID, Method: m.Method, Params: m.Params, conn: c, buf: buf, size: int64(len(buf.b))}
		c.work.add(r.size)
		r.guard(func() { c.handler.Request(r) })
	case protocol.Notification:
		defer buffers.put(buf)
		return c.notify(m.Method, m.Params)
	default:
		defer buffers.put(buf)
		if !c.calls.answer(m) {
			c.log.Warn("response without a request ignored", "id", m.ID.String())
		}
	}
	return nil
}

// refuse answers a message above the limit.
func (c *Conn) refuse(tooLarge *transport.TooLargeError) {
	c.log.Warn("message refused", "error", tooLarge)
	id, answer := protocol.GuessID(tooLarge.Prefix)
	if answer {
		c.calls.refuse(id, tooLarge)
		return
	}
	c.fail(id, protocol.Errorf(protocol.CodeInvalidRequest, "%s; raise it with --max-message-bytes", tooLarge))
}

// notify has the handler serve a notification; a panic ends only that.
func (c *Conn) notify(method string, params json.RawMessage) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.logPanic("a notification", method, v)
		}
	}()
	return c.handler.Notification(method, params)
}

// violate ends the connection because of something the peer must not send.
func (c *Conn) violate(err error) {
	c.log.Warn("protocol violation", "error", err)
	c.fail(protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
	c.Close(transport.Reason{Code: transport.CodeProtocolError, Text: err.Error()}, err)
}

// fail queues an error reply.
func (c *Conn) fail(id protocol.ID, e *protocol.Error) {
	c.out.put(protocol.AppendErrorResponse(nil, id, e), nil)
}

// Notify queues a notification.
func (c *Conn) Notify(method string, params any) error {
	msg, err := protocol.AppendNotification(nil, method, params)
	if err != nil {
		return err
	}
	if !c.out.put(msg, nil) {
		return c.whyGone()
	}
	return nil
}

// whyGone says why the connection takes no more messages.
func (c *Conn) whyGone() error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	return ErrPeerClosed // it does not read any more
}

// Publish queues a notification of about size bytes when there is room for it,
// as [Request.Reserve] does for a reply. It fails when the connection ends.
func (c *Conn) Publish(method string, params any, size int) error {
	reserved, err := c.out.room.reserve(int64(size))
	if err != nil {
		return err
	}
	msg, err := protocol.AppendNotification(nil, method, params)
	if err != nil {
		c.out.room.giveBack(reserved)
		return err
	}
	if !c.out.put(msg, reserved) {
		return c.whyGone()
	}
	return nil
}

// SetSource makes source the supplier of events; nil means none. The source
// before is not used any more once SetSource has returned.
func (c *Conn) SetSource(source Source) {
	c.out.setSource(source)
	c.Wake()
}

// Wake tells the writer that the source has something new.
func (c *Conn) Wake() { c.out.wake() }
