package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// initializeResult is the answer to initialize, as far as every server sends it.
type initializeResult struct {
	SessionID       string    `json:"sessionId"`
	EnvironmentInfo *wireInfo `json:"environmentInfo"`
}

// open makes the first connection.
func (m *connManager) open(ctx context.Context) error {
	m.closing = make(chan struct{})
	m.changed = make(chan struct{})
	conn, result, err := m.first(ctx)
	if err != nil {
		m.wg.Wait()
		return err
	}
	m.setSession(result.SessionID)
	m.conn = conn
	if err := m.describe(ctx, conn, result.EnvironmentInfo); err != nil {
		m.once.Do(func() { close(m.closing) })
		conn.Close(transport.Reason{}, err)
		m.wg.Wait()
		return err
	}
	m.acks = m.has(capAck)
	m.learnLease(ctx, conn)
	m.wg.Go(m.watch)
	return nil
}

// resumePatience is how long the first connection tries to resume a session that is still
// attached: the server may notice the end of its last connection later than its program.
const resumePatience = 3 * time.Second

// first makes the first connection.
func (m *connManager) first(ctx context.Context) (*rpc.Conn, *initializeResult, error) {
	for deadline := time.Now().Add(resumePatience); ; {
		conn, result, err := m.connect(ctx)
		if !errors.Is(err, protocol.ErrSessionAttached) || !m.resumes || time.Now().After(deadline) {
			return conn, result, err
		}
		select {
		case <-time.After(5 * minPause):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// unexpected says why a server answers with another session than the one asked for.
func (m *connManager) unexpected(r *initializeResult) error {
	if m.opts.NoSession {
		return &UnsupportedError{"connect without a session", capSessions}
	}
	if m.isObserving() && (r.EnvironmentInfo == nil || string(r.EnvironmentInfo.Capabilities[capObserve]) != "true") {
		return &UnsupportedError{"observe a session", capObserve}
	}
	return fmt.Errorf("exec-server initialized an unexpected session %s", r.SessionID)
}

// describe asks a server about its machine, if initialize did not.
func (m *connManager) describe(ctx context.Context, conn *rpc.Conn, info *wireInfo) error {
	if info == nil {
		ctx, cancel := context.WithTimeout(ctx, m.opts.InitializeTimeout)
		defer cancel()
		info = new(wireInfo)
		raw, err := conn.Call(ctx, protocol.MethodEnvironmentInfo, nil)
		if err == nil {
			err = json.Unmarshal(raw, info)
		}
		if err != nil && !errors.Is(err, protocol.ErrMethodNotFound) {
			return &DialError{URL: m.name, Err: fmt.Errorf("environment/info: %w", err)}
		}
	}
	m.machine = info.info()
	return nil
}

// connect makes a connection and carries out the handshake.
func (m *connManager) connect(ctx context.Context) (*rpc.Conn, *initializeResult, error) {
	opts := m.opts
	dialCtx, cancel := context.WithTimeoutCause(ctx, opts.ConnectTimeout, &timeoutError{"connecting", opts.ConnectTimeout})
	defer cancel()
	stream, err := m.dial(dialCtx)
	if err != nil {
		if dialCtx.Err() != nil {
			err = context.Cause(dialCtx)
		}
		return nil, nil, dialError(m.name, err)
	}
	if m.name == "" {
		m.name = stream.Remote()
	}
	h := &handler{m: m}
	h.conn = rpc.New(stream, h, &rpc.Options{
		Log: opts.Log, PingInterval: opts.pingInterval, Pause: m.user.mayRead,
	})
	h.conn.AcceptBinary()
	if opts.Compression.wanted(stream.Remote()) && h.conn.CarriesBinary() {
		h.conn.AcceptCompressed()
	}
	m.user.opened(h.conn)
	m.wg.Go(func() {
		_ = h.conn.Run() // the cause of its context is the same
		m.user.ended(h.conn)
		h.conn.Wait()
	})
	result, err := m.initialize(ctx, h)
	if err != nil {
		reason := lost
		if m.isObserving() {
			reason = done // a server that cannot do this has made another session
		}
		h.conn.Close(reason, err)
		return nil, nil, &DialError{URL: m.name, Err: err}
	}
	return h.conn, result, nil
}

// initialize carries out the handshake; see PROTOCOL.md, "Handshake". Its time begins again
// whenever more of the server has arrived on the other machine.
func (m *connManager) initialize(ctx context.Context, h *handler) (*initializeResult, error) {
	conn, timeout := h.conn, m.opts.InitializeTimeout
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deadline := time.AfterFunc(timeout, func() { cancel(&timeoutError{"the initialize handshake", timeout}) })
	defer deadline.Stop()
	h.initializing.Store(deadline)
	defer h.initializing.Store(nil)
	params := protocol.InitializeParams{
		ClientName: m.opts.Name,
		Capabilities: protocol.ClientCapabilities{
			ProcessAck: true, BinaryFrames: conn.CarriesBinary(), Compress: conn.AcceptsCompressed(),
		},
	}
	session, observing := m.sessionID(), m.isObserving()
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
	resumed := session != "" && !observing && m.acks
	if resumed {
		err := conn.Notify(protocol.MethodInitialized, struct{}{})
		if err == nil {
			err = m.user.resume(conn)
		}
		if err != nil {
			return nil, err
		}
	}
	raw, err := await(ctx)
	switch {
	case sessionUnknown(err) && m.opts.NoSession:
		err = &handshakeError{m.unexpected(nil)}
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
	case result.SessionID == "" && !m.opts.NoSession:
		return nil, &handshakeError{errors.New("the server has no sessions; use exec-server, or Codex 0.120 or later")}
	case (session != "" || observing) && result.SessionID != session:
		return nil, &handshakeError{m.unexpected(&result)}
	}
	if resumed {
		return &result, nil
	}
	return &result, conn.Notify(protocol.MethodInitialized, struct{}{})
}

// handshakeError says that another attempt with the server is useless.
type handshakeError struct{ error }

func (e *handshakeError) Unwrap() error { return e.error }

// learnLease asks for the lease of a session that another program began. If the server does
// not say, the session has none.
func (m *connManager) learnLease(ctx context.Context, conn *rpc.Conn) {
	if !m.inherited || m.isObserving() || !m.machine.Capabilities[capSessions] {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.InitializeTimeout)
	defer cancel()
	raw, err := conn.Call(ctx, protocol.MethodSessions, nil)
	if err != nil {
		return
	}
	var r protocol.SessionsResult
	if json.Unmarshal(raw, &r) != nil {
		return
	}
	for _, s := range r.Sessions {
		if s.SessionID == m.sessionID() {
			m.setLease(millis(s.KeepMs))
		}
	}
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
		deadline.Reset(h.m.opts.InitializeTimeout)
	}
	return nil
}
