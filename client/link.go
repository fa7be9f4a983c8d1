package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"execserver/protocol"
	"execserver/rpc"
	"execserver/transport"
)

// link is the connection to a server: it is made, watched, and when it breaks
// made again, with the same session. Calls wait meanwhile.
type link struct {
	env     *Environment
	name    string // of the server, in errors
	dial    func(context.Context) (transport.Conn, error)
	resumes bool // dial can be called again

	session string
	machine *Info
	streams streams // bodies of HTTP responses

	closing chan struct{}
	once    sync.Once
	wg      sync.WaitGroup // connections, and the goroutine that watches them

	mu      sync.Mutex
	conn    *rpc.Conn     // the current one; it may have ended
	epoch   int           // how many there were before
	changed chan struct{} // closed when conn or failure changes
	failure error         // there will be no other connection
}

// lost ends a connection that may be made again. The server takes the code for a
// normal closure for a farewell, which may end the session.
var lost = transport.Reason{Code: transport.CodeGoingAway, Text: "going away"}

// open makes the first connection.
func (l *link) open(ctx context.Context) error {
	l.closing = make(chan struct{})
	l.changed = make(chan struct{})
	conn, result, err := l.connect(ctx)
	if err != nil {
		l.wg.Wait()
		return err
	}
	l.session = result.SessionID
	l.conn = conn
	if err := l.describe(ctx, conn, result.EnvironmentInfo); err != nil {
		l.once.Do(func() { close(l.closing) })
		conn.Close(transport.Reason{}, err)
		l.wg.Wait()
		return err
	}
	l.env.acks = l.machine.Capabilities[capAck]
	l.wg.Go(l.watch)
	return nil
}

// describe asks servers that do not tell it by themselves about their machine.
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

// connect makes a connection and shakes hands.
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
	peer := &peer{link: l}
	peer.conn = rpc.New(stream, peer, &rpc.Options{
		Log: opts.Log, PingInterval: opts.pingInterval, Hold: l.env.intake.hold,
	})
	l.wg.Go(func() {
		_ = peer.conn.Run() // the cause of its context tells the same
		peer.conn.Wait()
	})
	result, err := l.initialize(ctx, peer.conn)
	if err != nil {
		peer.conn.Close(lost, err)
		return nil, nil, &DialError{URL: l.name, Err: err}
	}
	return peer.conn, result, nil
}

// initialize shakes hands; see PROTOCOL.md, "Handshake".
func (l *link) initialize(ctx context.Context, conn *rpc.Conn) (*initializeResult, error) {
	timeout := l.env.opts.InitializeTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &timeoutError{"the initialize handshake", timeout})
	defer cancel()
	params := protocol.Initialize{
		ClientName:   l.env.opts.Name,
		Capabilities: protocol.ClientCapabilities{ProcessAck: true},
	}
	if l.session != "" {
		params.ResumeSessionID = &l.session
	}
	await, err := conn.Begin(protocol.MethodInitialize, params)
	if err != nil {
		return nil, err
	}
	// What is acknowledged at once is not sent again. Otherwise connections that
	// live shortly would all bring the same.
	resumed := l.session != "" && l.env.acks
	if resumed {
		if err := l.acknowledge(conn); err != nil {
			return nil, err
		}
	}
	raw, err := await(ctx)
	if err != nil {
		return nil, err
	}
	var result initializeResult
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, &handshakeError{"the answer to initialize cannot be understood: " + err.Error()}
	}
	switch {
	case result.SessionID == "":
		return nil, &handshakeError{"the server has no sessions; use exec-server, or Codex 0.120 or later"}
	case l.session != "" && result.SessionID != l.session:
		return nil, &handshakeError{"exec-server initialized an unexpected session " + result.SessionID}
	}
	if resumed {
		return &result, nil
	}
	return &result, conn.Notify(protocol.MethodInitialized, struct{}{})
}

// acknowledge ends the handshake and says what we have of every process.
func (l *link) acknowledge(conn *rpc.Conn) error {
	err := conn.Notify(protocol.MethodInitialized, struct{}{})
	for _, p := range l.env.live() {
		if seq := p.acknowledged(); seq > 0 && err == nil {
			err = conn.Notify(protocol.MethodAck, protocol.Ack{ProcessID: p.ID, Seq: seq})
		}
	}
	return err
}

// handshakeError says that there is no use in talking to the server again.
type handshakeError struct{ text string }

func (e *handshakeError) Error() string { return e.text }

// watch makes the connection again whenever it has ended, until it must not or
// cannot.
func (l *link) watch() {
	for {
		conn := l.conn // only changed here
		select {
		case <-conn.Context().Done():
		case <-l.closing:
			conn.Close(transport.Reason{Code: transport.CodeNormal, Text: "the client is done"}, ErrClosed)
			<-conn.Context().Done()
		}
		select {
		case <-l.closing:
			l.set(nil, ErrClosed)
			return
		default:
		}
		cause := context.Cause(conn.Context())
		l.streams.fail(&DisconnectedError{Cause: cause})
		l.env.opts.Log.Info("connection lost", "server", l.name, "cause", cause)
		next, err := l.recover(cause)
		if err != nil {
			l.set(nil, err)
			l.env.opts.Log.Warn("connection given up", "server", l.name, "error", err)
			l.env.fail(err)
			return
		}
		l.env.opts.Log.Info("connection recovered", "server", l.name)
		l.set(next, nil)
		for _, p := range l.env.live() {
			p.ackAgain()
			p.fill()
		}
	}
}

// Between two attempts to connect.
const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second
)

// recover makes the connection again, at once and then after pauses that grow.
func (l *link) recover(cause error) (*rpc.Conn, error) {
	timeout := l.env.opts.RecoveryTimeout
	if !l.resumes || timeout < 0 {
		return nil, &DisconnectedError{Cause: cause}
	}
	ctx, cancel := context.WithTimeoutCause(l.env.ctx, timeout, &timeoutError{"recovery", timeout})
	defer cancel()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		conn, result, err := l.connect(ctx)
		switch {
		case err == nil:
			l.session = result.SessionID
			return conn, nil
		case l.session != "" && sessionUnknown(err) && !slices.ContainsFunc(l.env.live(), (*Process).mayExist):
			// A server takes the end of a stream for a farewell, and a session that holds
			// nothing ends with it. Nothing of ours is missing in another one.
			l.session = ""
			continue
		case ctx.Err() != nil:
			return nil, &DisconnectedError{Cause: cause, Err: errors.Join(context.Cause(ctx), err)}
		case !retryable(err):
			return nil, &DisconnectedError{Cause: cause, Err: err}
		}
		l.env.opts.Log.Debug("connection not recovered yet", "server", l.name, "error", err)
		// Not all clients of a server that comes back shall come at once.
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-l.closing:
			return nil, &DisconnectedError{Cause: cause, Err: ErrClosed}
		case <-ctx.Done():
			return nil, &DisconnectedError{Cause: cause, Err: errors.Join(context.Cause(ctx), err)}
		}
	}
}

// mayExist reports whether the server may have the process.
func (p *Process) mayExist() bool { return p.asked.Load() }

// sessionUnknown reports whether a server has no such session any more.
func sessionUnknown(err error) bool {
	var refused *protocol.Error
	return errors.As(err, &refused) && refused.Code == protocol.CodeInvalidRequest &&
		strings.HasPrefix(refused.Message, "unknown session id")
}

// retryable reports whether another attempt to resume may be more successful:
// unless the server has said no for good.
func retryable(err error) bool {
	var refused *protocol.Error
	if errors.As(err, &refused) {
		return refused.Code == protocol.CodeSessionAttached || refused.Code == protocol.CodeTransportClosed
	}
	var dial *DialError
	return errors.As(err, &dial) && dial.retryable() && !errors.As(err, new(*handshakeError))
}

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

// current returns a connection that has not ended, for which it waits, and the
// number of connections before it.
func (l *link) current(ctx context.Context) (*rpc.Conn, int, error) {
	for {
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

// errBroken is returned by try when the connection has ended before the answer.
type errBroken struct{ cause error }

func (e *errBroken) Error() string { return e.cause.Error() }

// try makes a request over the current connection. The error is an *errBroken
// when it may have been carried out or not.
func (l *link) try(ctx context.Context, method string, params any) (json.RawMessage, error) {
	conn, _, err := l.current(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := conn.Call(ctx, method, params)
	return raw, l.failed(ctx, conn, method, err)
}

// failed says why a request failed, if it did.
func (l *link) failed(ctx context.Context, conn *rpc.Conn, method string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, protocol.ErrTransportClosed), errors.Is(err, rpc.ErrPeerClosed):
		// Its writer may have failed before its reader has noticed.
		conn.Close(transport.Reason{}, err)
		return &errBroken{err}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, new(*protocol.Error)):
		return l.refusal(method, err)
	case conn.Context().Err() != nil:
		return &errBroken{err}
	}
	return err
}

// tryOpening is try for a request that opens something at the server. It returns the number of
// connections before the one that answers. When ctx ends before the answer, undo
// is called as soon as the answer says that it is open: a server need not serve in
// order what would close it.
func (l *link) tryOpening(ctx context.Context, method string, params any, undo func(context.Context, *rpc.Conn)) (int, error) {
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
		return 0, l.env.Err()
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

// undoTimeout bounds how long something is tried that nobody waits for.
func (l *link) undoTimeout() time.Duration {
	return max(terminateTimeout, l.env.opts.RecoveryTimeout)
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
	var broken *errBroken
	if errors.As(err, &broken) {
		return nil, &DisconnectedError{Cause: broken.cause}
	}
	return raw, err
}

// repeat makes a request that may be carried out twice, again and again until
// it is answered.
func (l *link) repeat(ctx context.Context, method string, params any) (json.RawMessage, error) {
	for {
		raw, err := l.try(ctx, method, params)
		if !errors.As(err, new(*errBroken)) {
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
		_ = conn.Notify(method, params) // a broken connection is noticed elsewhere
	}
}

// shut implements backend.
func (l *link) shut() {
	l.once.Do(func() { close(l.closing) })
	l.streams.fail(ErrClosed)
	l.wg.Wait()
}

// peer is the server at the other end of one connection: the rpc.Handler for
// what it sends.
type peer struct {
	link *link
	conn *rpc.Conn
}

// Request implements rpc.Handler. Servers have nothing to ask of us.
func (p *peer) Request(r *rpc.Request) {
	r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "exec-server client does not implement `%s` yet", r.Method))
}

// Notification implements rpc.Handler. Unknown ones are ignored; one that cannot be
// understood ends the connection, for what it said can be had after a resume.
func (p *peer) Notification(method string, params json.RawMessage) error {
	if method == notificationBodyDelta {
		return p.link.streams.delta(params)
	}
	id, event, ok, err := decodeEvent(method, params)
	switch {
	case err != nil:
		return fmt.Errorf("exec-server notification handling failed: %s: %w", method, err)
	case !ok:
		return nil
	}
	process := p.link.env.process(id)
	if process == nil {
		p.disclaim(id, event.Seq)
		return nil
	}
	process.insert(event)
	return nil
}

// disclaim acknowledges an event of a process that nobody here knows any more:
// its end was acknowledged over a connection that broke, or its start abandoned. The
// server would keep what it has of it, and send it again after every resume.
func (p *peer) disclaim(id string, seq uint64) {
	if p.link.env.acks {
		_ = p.conn.Notify(protocol.MethodAck, protocol.Ack{ProcessID: id, Seq: seq}) // or after the next resume
	}
}
