package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/forward"
	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// link is the connection to a server. It connects, and reconnects with the same session
// when the connection breaks. Calls wait meanwhile.
type link struct {
	env     *Environment
	name    string // of the server, in errors; if empty, the first connection sets it
	dial    func(context.Context) (transport.Conn, error)
	resumes bool // dial may be called again

	machine *Info
	streams streams // bodies of HTTP responses
	watches watches
	tunnels tunnels // forwarded connections

	closing chan struct{}
	once    sync.Once
	wg      sync.WaitGroup // connections, and the goroutine that watches them

	useful    atomic.Pointer[rpc.Conn] // the latest connection that brought an answer or an event
	detached  atomic.Bool              // the session is to outlive the connection
	takenOver atomic.Bool              // another program owns the session
	shutdown  atomic.Bool              // the server shuts down and has ended the session

	mu        sync.Mutex
	session   string        // id at the server; "" asks for a new one
	observing bool          // the session is another program's
	kept      time.Duration // the lease of the session
	conn      *rpc.Conn     // the current connection, which may have ended
	epoch     int           // number of earlier connections
	changed   chan struct{} // closed when conn or failure changes
	failure   error         // why there will be no further connection
}

// lost ends a connection that may be replaced. The server would treat the code for a
// normal closure as a farewell, which may end the session.
var lost = transport.Reason{Code: transport.CodeGoingAway, Text: "going away"}

// done ends a connection for good, and the session if that holds nothing.
var done = transport.Reason{Code: transport.CodeNormal, Text: "the client is done"}

// open makes the first connection.
func (l *link) open(ctx context.Context) error {
	l.closing = make(chan struct{})
	l.changed = make(chan struct{})
	conn, result, err := l.first(ctx)
	if err != nil {
		l.wg.Wait()
		return err
	}
	l.setSession(result.SessionID)
	l.conn = conn
	if err := l.describe(ctx, conn, result.EnvironmentInfo); err != nil {
		l.once.Do(func() { close(l.closing) })
		conn.Close(transport.Reason{}, err)
		l.wg.Wait()
		return err
	}
	l.env.acks = l.machine.Capabilities[capAck]
	l.learnLease(ctx, conn)
	l.wg.Go(l.watch)
	return nil
}

// describe asks a server about its machine, if initialize did not.
func (l *link) describe(ctx context.Context, conn *rpc.Conn, info *wireInfo) error {
	if info == nil {
		ctx, cancel := context.WithTimeout(ctx, l.env.opts.InitializeTimeout)
		defer cancel()
		info = new(wireInfo)
		raw, err := conn.Call(ctx, protocol.MethodEnvironmentInfo, nil)
		if err == nil {
			err = json.Unmarshal(raw, info)
		}
		if err != nil && !errors.Is(err, protocol.ErrMethodNotFound) {
			return &DialError{URL: l.name, Err: fmt.Errorf("environment/info: %w", err)}
		}
	}
	l.machine = info.info()
	return nil
}

// connect makes a connection and carries out the handshake.
func (l *link) connect(ctx context.Context) (*rpc.Conn, *initializeResult, error) {
	opts := &l.env.opts
	dialCtx, cancel := context.WithTimeoutCause(ctx, opts.ConnectTimeout, &timeoutError{"connecting", opts.ConnectTimeout})
	defer cancel()
	stream, err := l.dial(dialCtx)
	if err != nil {
		if dialCtx.Err() != nil {
			err = context.Cause(dialCtx)
		}
		return nil, nil, dialError(l.name, err)
	}
	if l.name == "" {
		l.name = stream.Remote()
	}
	h := &handler{link: l}
	h.conn = rpc.New(stream, h, &rpc.Options{
		Log: opts.Log, PingInterval: opts.pingInterval, Hold: l.env.intake.hold,
	})
	h.conn.AcceptBinary()
	if opts.Compression.wanted(stream.Remote()) && h.conn.CarriesBinary() {
		h.conn.AcceptCompressed()
	}
	h.tunnel = l.tunnels.add(h.conn)
	l.wg.Go(func() {
		_ = h.conn.Run() // the cause of its context is the same
		l.tunnels.remove(h.conn)
		h.conn.Wait()
	})
	result, err := l.initialize(ctx, h)
	if err != nil {
		reason := lost
		if l.isObserving() {
			reason = done // a server that cannot do this has made another session
		}
		h.conn.Close(reason, err)
		return nil, nil, &DialError{URL: l.name, Err: err}
	}
	return h.conn, result, nil
}

// initialize carries out the handshake; see PROTOCOL.md, "Handshake". Its time begins again
// whenever more of the server has arrived on the other machine.
func (l *link) initialize(ctx context.Context, h *handler) (*initializeResult, error) {
	conn, timeout := h.conn, l.env.opts.InitializeTimeout
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deadline := time.AfterFunc(timeout, func() { cancel(&timeoutError{"the initialize handshake", timeout}) })
	defer deadline.Stop()
	h.initializing.Store(deadline)
	defer h.initializing.Store(nil)
	params := protocol.InitializeParams{
		ClientName: l.env.opts.Name,
		Capabilities: protocol.ClientCapabilities{
			ProcessAck: true, BinaryFrames: conn.CarriesBinary(), Compress: conn.AcceptsCompressed(),
		},
	}
	session, observing := l.sessionID(), l.isObserving()
	switch {
	case observing:
		params.ObserveSessionID = &session
	case session != "":
		params.ResumeSessionID = &session
	}
	await, err := conn.Begin(protocol.MethodInitialize, params)
	if err != nil {
		return nil, err
	}
	// Acknowledge at once, so that the server does not send those events again. Otherwise
	// each of several short connections would bring the same events.
	resumed := session != "" && !observing && l.env.acks
	if resumed {
		if err := l.acknowledge(conn); err != nil {
			return nil, err
		}
	}
	raw, err := await(ctx)
	switch {
	case sessionUnknown(err) && l.env.opts.NoSession:
		err = &handshakeError{l.unexpected(nil)}
	case sessionUnknown(err):
		err = fmt.Errorf("%w: %w", ErrUnknownSession, err)
	}
	if err != nil {
		return nil, err
	}
	var result initializeResult
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, &handshakeError{fmt.Errorf("the answer to initialize cannot be understood: %w", err)}
	}
	if result.EnvironmentInfo.has(capBinary) && conn.CarriesBinary() {
		conn.SendBinary()
		if result.EnvironmentInfo.has(capCompress) && conn.AcceptsCompressed() {
			conn.SendCompressed()
		}
	}
	switch {
	case result.SessionID == "" && !l.env.opts.NoSession:
		return nil, &handshakeError{errors.New("the server has no sessions; use exec-server, or Codex 0.120 or later")}
	case (session != "" || observing) && result.SessionID != session:
		return nil, &handshakeError{l.unexpected(&result)}
	}
	if resumed {
		return &result, nil
	}
	return &result, conn.Notify(protocol.MethodInitialized, struct{}{})
}

// acknowledge ends the handshake and acknowledges the events of every process.
func (l *link) acknowledge(conn *rpc.Conn) error {
	err := conn.Notify(protocol.MethodInitialized, struct{}{})
	for _, p := range l.env.live() {
		if seq := p.acknowledged(); seq > 0 && err == nil {
			err = conn.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: p.ID, Seq: seq})
		}
	}
	return err
}

// handshakeError says that another attempt with the server is useless.
type handshakeError struct{ error }

func (e *handshakeError) Unwrap() error { return e.error }

func (l *link) set(conn *rpc.Conn, failure error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.failure = conn, failure
	l.epoch++
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) currentEpoch() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// current returns a live connection, for which it waits, and the number of connections
// before it. It refuses a context that has ended, so that nothing is asked for somebody who
// waits no longer, and no answer that comes at once hides that.
func (l *link) current(ctx context.Context) (*rpc.Conn, int, error) {
	for {
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		l.mu.Lock()
		conn, epoch, failure, changed := l.conn, l.epoch, l.failure, l.changed
		l.mu.Unlock()
		switch {
		case failure != nil:
			return nil, 0, failure
		case conn.Context().Err() == nil:
			return conn, epoch, nil
		case l.env.opts.FailFast:
			return nil, 0, ErrRecovering
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// brokenError is the error of try if the connection ended before the answer.
type brokenError struct{ cause error }

func (e *brokenError) Error() string { return e.cause.Error() }

// try makes a request over the current connection. If the error is a *brokenError, the
// server may or may not have carried it out.
func (l *link) try(ctx context.Context, method string, params any) (json.RawMessage, error) {
	raw, _, err := l.tryBulk(ctx, method, params)
	return raw, err
}

// tryBulk is like try, for an answer that may be binary: it also returns its data, which is
// nil in a JSON message.
func (l *link) tryBulk(ctx context.Context, method string, params any) (json.RawMessage, []byte, error) {
	if err := l.permit(method); err != nil {
		return nil, nil, err
	}
	conn, _, err := l.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	raw, data, err := conn.CallBulk(ctx, method, params)
	return raw, data, l.failed(ctx, conn, method, err)
}

// failed returns why a request failed.
func (l *link) failed(ctx context.Context, conn *rpc.Conn, method string, err error) error {
	switch {
	case err == nil:
		l.useful.Store(conn)
		return nil
	case errors.Is(err, protocol.ErrTransportClosed), errors.Is(err, rpc.ErrPeerClosed):
		// The writer may have failed before the reader has noticed.
		conn.Close(transport.Reason{}, err)
		return &brokenError{err}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, new(*protocol.Error)):
		return l.refusal(method, err)
	case conn.Context().Err() != nil:
		return &brokenError{err}
	}
	return err
}

// tryOpening is like try, for a request that opens something at the server. It returns
// the number of connections before the one that answers. If ctx ends before the answer,
// it calls undo when the answer has come, unless that is an error. It does not call undo
// earlier, because a server may serve the request of undo before the one that opens.
func (l *link) tryOpening(ctx context.Context, method string, params any, undo func(context.Context, *rpc.Conn)) (int, error) {
	if err := l.permit(method); err != nil {
		return 0, err
	}
	conn, epoch, err := l.current(ctx)
	if err != nil {
		return 0, err
	}
	await, err := conn.Begin(method, params)
	if err != nil {
		return 0, l.failed(ctx, conn, method, err)
	}
	answer := make(chan error, 1)
	wait := func() {
		_, err := await(l.env.ctx)
		answer <- err
	}
	if !l.env.run(wait) {
		wait() // the Environment has ended, so this only takes an answer that came before
	}
	select {
	case err := <-answer:
		return epoch, l.failed(ctx, conn, method, err)
	case <-ctx.Done():
	}
	l.env.run(func() {
		if <-answer != nil {
			return
		}
		ctx, cancel := context.WithTimeout(l.env.ctx, l.undoTimeout())
		defer cancel()
		undo(ctx, conn)
	})
	return 0, context.Cause(ctx)
}

// undoTimeout bounds the attempt to undo.
func (l *link) undoTimeout() time.Duration {
	return max(terminateTimeout, l.recoveryTime())
}

func (l *link) refusal(method string, err error) error {
	if errors.Is(err, protocol.ErrMethodNotFound) {
		return &UnsupportedError{method, "the method " + method}
	}
	os := ""
	if l.machine != nil {
		os = l.machine.OS
	}
	return explain(err, os)
}

// request makes a request that must not be carried out twice.
func (l *link) request(ctx context.Context, method string, params any) (json.RawMessage, error) {
	raw, err := l.try(ctx, method, params)
	var broken *brokenError
	if errors.As(err, &broken) {
		return nil, &DisconnectedError{Cause: broken.cause}
	}
	return raw, err
}

// repeat makes a request that may be carried out twice. It repeats the request until
// there is an answer.
func (l *link) repeat(ctx context.Context, method string, params any) (json.RawMessage, error) {
	for {
		raw, err := l.try(ctx, method, params)
		if !errors.As(err, new(*brokenError)) {
			return raw, err
		}
	}
}

// notify sends a notification if there is a connection.
func (l *link) notify(method string, params any) {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		_ = conn.Notify(method, params) // watch notices a broken connection
	}
}

// shut closes the connection, and waits until the link's goroutines have ended.
func (l *link) shut() {
	l.once.Do(func() { close(l.closing) })
	l.streams.fail(ErrClosed)
	l.wg.Wait()
}

// handler is the rpc.Handler for the messages that the server sends over one connection.
type handler struct {
	link   *link
	conn   *rpc.Conn
	tunnel *forward.Streams

	initializing atomic.Pointer[time.Timer] // the deadline of the handshake, while it lasts
	arrived      uint64                     // bytes of the server, as initialize/progress says
}

// Request implements rpc.Handler. Servers send no requests.
func (h *handler) Request(r *rpc.Request) {
	r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "exec-server client does not implement `%s` yet", r.Method))
}

// Notification implements rpc.Handler. It ignores unknown notifications. An invalid one
// ends the connection, because the client can read its content after a resume.
func (h *handler) Notification(method string, params json.RawMessage, data []byte) error {
	switch method {
	case protocol.NotificationInitializeProgress:
		return h.progress(params)
	case protocol.NotificationHTTPBodyDelta:
		return h.link.streams.delta(params)
	case protocol.NotificationChanged:
		return h.link.watches.changed(h.conn, params)
	case protocol.NotificationTakenOver:
		h.link.takenOver.Store(true) // the server ends the connection
		return nil
	case protocol.NotificationSessionEnded:
		h.link.shutdown.Store(true) // the server ends the connection
		return nil
	}
	if ours, err := h.tunnel.Notify(method, params, data); ours {
		return err
	}
	id, event, ok, err := decodeEvent(method, params, data)
	switch {
	case err != nil:
		return fmt.Errorf("exec-server notification handling failed: %s: %w", method, err)
	case !ok:
		return nil
	}
	process := h.link.env.process(id)
	if process == nil {
		h.disclaim(id, event.Seq)
		return nil
	}
	process.insert(event)
	h.link.useful.Store(h.conn)
	return nil
}

// progress gives the handshake its whole time again if more of the server has arrived.
func (h *handler) progress(params json.RawMessage) error {
	var p protocol.InitializeProgressParams
	if err := json.Unmarshal(params, &p); err != nil {
		return fmt.Errorf("exec-server notification handling failed: %s: %w", protocol.NotificationInitializeProgress, err)
	}
	deadline := h.initializing.Load()
	if deadline == nil || p.Bytes <= h.arrived {
		return nil
	}
	h.arrived = p.Bytes
	if deadline.Stop() { // it has not passed
		deadline.Reset(h.link.env.opts.InitializeTimeout)
	}
	return nil
}

// disclaim acknowledges an event of an unknown process: its end was acknowledged over a
// broken connection, or its start was abandoned. The server would otherwise keep its
// events and send them again after every resume. What another program has started is kept
// for Attach.
func (h *handler) disclaim(id string, seq uint64) {
	if !h.link.env.foreign(id) && h.link.env.acks {
		_ = h.conn.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: id, Seq: seq}) // otherwise after the next resume
	}
}
