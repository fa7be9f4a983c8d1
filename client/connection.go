package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// connManager keeps a connection to a server. It connects, and resumes the session over another
// connection when one breaks. Requests wait meanwhile. It knows which methods the server allows
// this client, but no process, file or other use of the connection.
type connManager struct {
	user    connUser
	opts    *Options
	ctx     context.Context // ends with the user
	name    string          // of the server, in errors; if empty, the first connection sets it
	dial    func(context.Context) (transport.Conn, error)
	resumes bool // dial may be called again

	// What the first connection brought. It does not change.
	machine   *Info
	acks      bool // the server supports acknowledgements
	inherited bool // the session is older than this program's use of it

	closing chan struct{}
	once    sync.Once
	wg      sync.WaitGroup // connections, and the goroutine that watches them
	states  states

	useful    atomic.Pointer[rpc.Conn] // the latest connection that brought an answer or an event
	detached  atomic.Bool              // the session is to outlive the connection
	takenOver atomic.Bool              // another program owns the session
	shutdown  atomic.Bool              // the server shuts down and has ended the session

	mu        sync.Mutex
	session   string        // id on the server; "" asks for a new one
	observing bool          // the session is another program's
	kept      time.Duration // the lease of the session
	conn      *rpc.Conn     // the current connection, which may have ended
	epoch     int           // number of earlier connections
	changed   chan struct{} // closed when conn or failure changes
	failure   error         // why there will be no further connection
}

// connUser is what uses a connManager: an Environment. No method may block.
type connUser interface {
	// opened is called for each connection before its handshake, ended after its end.
	opened(conn *rpc.Conn)
	ended(conn *rpc.Conn)
	// resume sends what the server must have at once over a connection that resumes the
	// session.
	resume(conn *rpc.Conn) error
	// notification handles a notification, and reports whether it was about something
	// that the user has. An error ends the connection.
	notification(conn *rpc.Conn, method string, params json.RawMessage, data []byte) (useful bool, err error)
	// mayRead implements rpc.Options.Pause.
	mayRead(calling bool) (space <-chan struct{})
	// lost is called when a connection has ended, recovered when another one has become
	// current, and fail when there will be none.
	lost(err error)
	recovered()
	fail(err error)
	// needsSession reports whether the session holds something of the user, so that a new
	// one would not be as good.
	needsSession() bool
	// run runs f on a goroutine that the user waits for. It returns false if the user has
	// ended.
	run(f func()) bool
}

// lost ends a connection that may be replaced. The server would treat the code for a
// normal closure as a farewell, which may end the session.
var lost = transport.Reason{Code: transport.CodeGoingAway, Text: "going away"}

// handler is the rpc.Handler for the messages that the server sends over one connection.
type handler struct {
	m    *connManager
	conn *rpc.Conn

	initializing atomic.Pointer[time.Timer] // the deadline of the handshake, while it lasts
	arrived      uint64                     // bytes of the server, as initialize/progress says
}

// Request implements rpc.Handler. Servers send no requests.
func (h *handler) Request(r *rpc.Request) {
	r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "exec-server client does not implement `%s` yet", r.Method))
}

// Notification implements rpc.Handler. An invalid notification ends the connection, because
// the client can read its content after a resume.
func (h *handler) Notification(method string, params json.RawMessage, data []byte) error {
	switch method {
	case protocol.NotificationInitializeProgress:
		return h.progress(params)
	case protocol.NotificationTakenOver:
		h.m.takenOver.Store(true) // the server ends the connection
		return nil
	case protocol.NotificationSessionEnded:
		h.m.shutdown.Store(true) // the server ends the connection
		return nil
	}
	useful, err := h.m.user.notification(h.conn, method, params, data)
	if useful {
		h.m.useful.Store(h.conn)
	}
	return err
}

// done ends a connection for good, and the session if it is empty.
var done = transport.Reason{Code: transport.CodeNormal, Text: "the client is done"}

// shut closes the connection, and waits until the manager's goroutines have ended.
func (m *connManager) shut() {
	m.once.Do(func() { close(m.closing) })
	m.user.lost(ErrClosed)
	m.wg.Wait()
}

// has reports whether the server has a capability.
func (m *connManager) has(capability string) bool { return m.machine.Capabilities[capability] }

func (m *connManager) set(conn *rpc.Conn, failure error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn, m.failure = conn, failure
	m.epoch++
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *connManager) currentEpoch() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// current returns a live connection, for which it waits, and the number of connections
// before it. If ctx has ended, it returns the cause even if there is a connection: otherwise a
// fast answer would hide from the caller that ctx has ended.
func (m *connManager) current(ctx context.Context) (*rpc.Conn, int, error) {
	for {
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		m.mu.Lock()
		conn, epoch, failure, changed := m.conn, m.epoch, m.failure, m.changed
		m.mu.Unlock()
		switch {
		case failure != nil:
			return nil, 0, failure
		case conn.Context().Err() == nil:
			return conn, epoch, nil
		case m.opts.FailFast && ctx.Value(ownRequest{}) == nil:
			return nil, 0, ErrRecovering
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// ownRequest is the key of a context whose requests the client makes by itself.
type ownRequest struct{}

// withoutFailFast returns a context whose requests wait for a connection even with
// Options.FailFast, because no caller could repeat them.
func withoutFailFast(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownRequest{}, true)
}

// own records that a connection has become the session's owner. If the current connection
// is a later one, which observes, it is replaced.
func (m *connManager) own(conn *rpc.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observing = false
	if m.conn != nil && m.conn != conn {
		m.conn.Close(lost, errObserves)
	}
}

// errObserves is why a connection is replaced that observes a session of this program.
var errObserves = errors.New("the connection observes a session that is this program's own")

func (m *connManager) isObserving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.observing
}

func (m *connManager) sessionID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.session
}

func (m *connManager) setSession(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = id
}

// inherit makes the manager continue a session that another program began.
func (m *connManager) inherit(o *Options) error {
	switch {
	case o.Session != "" && o.Observe != "":
		return errors.New("client: Options.Session and Options.Observe are both set")
	case o.NoSession && o.Session+o.Observe != "":
		return errors.New("client: Options.NoSession is set, and so is Session or Observe")
	}
	m.session = o.Session + o.Observe
	m.observing = o.Observe != "" || o.NoSession
	m.inherited = m.session != ""
	return nil
}

func (m *connManager) setLease(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = d
}

// lease returns how long the server keeps the session because a program asked for it.
func (m *connManager) lease() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept
}

// listable are the methods that a client without a session may call.
var listable = map[string]bool{
	protocol.MethodEnvironmentInfo:   true,
	protocol.MethodEnvironmentStatus: true,
	protocol.MethodList:              true,
	protocol.MethodUsage:             true,
	protocol.MethodSessions:          true,
	protocol.MethodRecordings:        true,
	protocol.MethodReadRecording:     true,
	protocol.MethodWebLink:           true,
	protocol.MethodSignal:            true, // in another session
	protocol.MethodTerminate:         true, // the same
	protocol.MethodEndSession:        true,
}

// permit returns an error for a method that the server would refuse to this client.
func (m *connManager) permit(method string) error {
	switch {
	case m.opts.NoSession && !listable[method]:
		return fmt.Errorf("%s: %w", method, ErrNoSession)
	case m.opts.NoSession, protocol.ForObservers(method), !m.isObserving():
		return nil
	}
	return fmt.Errorf("%s: %w", method, ErrObserving)
}

// brokenError is the error of try if the connection ended before the answer.
type brokenError struct{ cause error }

func (e *brokenError) Error() string { return e.cause.Error() }

// try makes a request over the current connection. If the error is a *brokenError, the
// server may or may not have carried it out.
func (m *connManager) try(ctx context.Context, method string, params any) (json.RawMessage, error) {
	raw, _, err := m.tryBulk(ctx, method, params)
	return raw, err
}

// tryBulk is like try, for an answer that may be binary: it also returns its data, which is
// nil in a JSON message.
func (m *connManager) tryBulk(ctx context.Context, method string, params any) (json.RawMessage, []byte, error) {
	if err := m.permit(method); err != nil {
		return nil, nil, err
	}
	conn, _, err := m.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	raw, data, err := conn.CallBulk(ctx, method, params)
	return raw, data, m.outcome(ctx, conn, method, err)
}

// outcome converts the error of a request, and draws the conclusion about the connection: after an
// answer it was useful, after a failed write it is closed.
func (m *connManager) outcome(ctx context.Context, conn *rpc.Conn, method string, err error) error {
	switch {
	case err == nil:
		m.useful.Store(conn)
		return nil
	case errors.Is(err, protocol.ErrTransportClosed), errors.Is(err, rpc.ErrPeerClosed):
		// The writer may have failed before the reader has noticed.
		conn.Close(transport.Reason{}, err)
		return &brokenError{err}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, new(*protocol.Error)):
		return m.refusal(method, err)
	case conn.Context().Err() != nil:
		return &brokenError{err}
	}
	return err
}

// tryOpening is like try, for a request that opens something on the server. It returns
// the number of connections before the one that answers. If ctx ends first, it waits for the
// answer in the background, and calls undo if the request succeeded. It must not call undo
// earlier: the two requests could change places.
func (m *connManager) tryOpening(ctx context.Context, method string, params any, undo func(context.Context, *rpc.Conn)) (int, error) {
	if err := m.permit(method); err != nil {
		return 0, err
	}
	conn, epoch, err := m.current(ctx)
	if err != nil {
		return 0, err
	}
	await, err := conn.Begin(method, params)
	if err != nil {
		return 0, m.outcome(ctx, conn, method, err)
	}
	answer := make(chan error, 1)
	wait := func() {
		_, err := await(m.ctx)
		answer <- err
	}
	if !m.user.run(wait) {
		wait() // the user has ended, so this only takes an answer that came before
	}
	select {
	case err := <-answer:
		return epoch, m.outcome(ctx, conn, method, err)
	case <-ctx.Done():
	}
	m.user.run(func() {
		if <-answer != nil {
			return
		}
		ctx, cancel := context.WithTimeout(m.ctx, m.undoTimeout())
		defer cancel()
		undo(ctx, conn)
	})
	return 0, context.Cause(ctx)
}

// undoTimeout bounds the attempt to undo.
func (m *connManager) undoTimeout() time.Duration {
	return max(terminateTimeout, m.recoveryTime())
}

func (m *connManager) refusal(method string, err error) error {
	if errors.Is(err, protocol.ErrMethodNotFound) {
		return &UnsupportedError{method, "the method " + method}
	}
	os := ""
	if m.machine != nil {
		os = m.machine.OS
	}
	return explain(err, os)
}

// request makes a request that must not be carried out twice.
func (m *connManager) request(ctx context.Context, method string, params any) (json.RawMessage, error) {
	raw, err := m.try(ctx, method, params)
	var broken *brokenError
	if errors.As(err, &broken) {
		return nil, &InterruptedError{broken.cause}
	}
	return raw, err
}

// repeat makes a request that may be carried out twice. It repeats the request until
// there is an answer.
func (m *connManager) repeat(ctx context.Context, method string, params any) (json.RawMessage, error) {
	for {
		raw, err := m.try(ctx, method, params)
		if !errors.As(err, new(*brokenError)) {
			return raw, err
		}
	}
}

// notify sends a notification if there is a connection.
func (m *connManager) notify(method string, params any) {
	m.mu.Lock()
	conn := m.conn
	m.mu.Unlock()
	if conn != nil {
		_ = conn.Notify(method, params) // watch notices a broken connection
	}
}

// query makes a request that may be repeated, and decodes the answer.
func (m *connManager) query(ctx context.Context, method string, params, result any) error {
	for {
		raw, data, err := m.tryBulk(ctx, method, params)
		switch {
		case err == nil:
			return understandBulk(method, raw, data, result)
		case !errors.As(err, new(*brokenError)):
			return err
		}
	}
}

// understand decodes the answer to a request.
func understand(method string, raw json.RawMessage, result any) error {
	return understandBulk(method, raw, nil, result)
}

// understandBulk is like understand, for an answer that may be binary.
func understandBulk(method string, raw json.RawMessage, data []byte, result any) error {
	if err := protocol.DecodeResult(raw, data, result); err != nil {
		return &answerError{method, err}
	}
	return nil
}
