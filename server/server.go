// Package server implements the server side of the exec-server protocol. A server runs
// commands and accesses files on this machine for its clients. PROTOCOL.md is the
// specification of the protocol, and package client implements a client.
//
// A [Server] serves WebSocket clients on a listener:
//
//	authenticator, err := server.NewAuthenticator(server.AuthConfig{TokenFile: "/etc/exec-server/token"})
//	if err != nil {
//		log.Fatal(err)
//	}
//	s := server.New(&server.Options{Auth: authenticator})
//	log.Fatal(s.ServeWebSocket(listener))
//
// [Server.Handler] serves them as a part of the caller's http.Server, [Server.ServeUnix]
// serves a unix socket, and [Server.ServeConn] and [Server.ServeOnly] serve one connection.
// [Server.Shutdown] ends all sessions and connections.
//
// Each client has a session, which owns its processes and outlives a lost connection: the
// client can connect again and resume it.
//
// A client has the rights of the server's user. A server therefore admits no WebSocket client by
// default. Set Options.Auth to an [Authenticator], which requires a token or a certificate, or to
// [Unauthenticated]. A [Sandbox] confines the commands and file operations for which a client
// requests it; a program that uses one must call [RunHelper] at the start of main.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/internal/filesystem"
	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/quota"
	"execserver/internal/sandbox"
	"execserver/internal/session"
	"execserver/internal/stream"
	"execserver/protocol"
	"execserver/transport"
)

// DefaultMaxConnections is the default limit of connections that have a session.
const DefaultMaxConnections = 1024

// Server serves any number of connections. Its methods may be called concurrently.
type Server struct {
	opts      Options
	ext       extension.Options   // Options.Extensions
	auth      *auth.Authenticator // nil admits everybody
	audit     *audit.Log          // nil records nothing
	sandbox   *sandbox.Engine     // nil refuses every sandbox
	log       *slog.Logger
	ownership *ownership.Ownership
	cwd       cwd
	starting  *quota.Semaphore // of starts in progress, by session
	sessions  *session.Sessions

	admission     *admission
	endAdmission  context.CancelCauseFunc // ends what admission waits for
	streams       *stream.Server
	pending       *pending
	refusals      *refusals
	confined      *quota.Semaphore // of helpers in sandboxes
	quotas        quotas
	listingValues int // JSON values in a listing
	counters      counters

	mu        sync.Mutex
	conns     map[*connection]struct{}
	listeners map[net.Listener]struct{}
	shutdown  bool
	wg        sync.WaitGroup // connections being served

	inPlace unfinished // writes in place, which must not be interrupted
}

// ErrClosed is the error of the serving methods after Shutdown.
var ErrClosed = errors.New("server closed")

// New returns a server. nil means the default Options. The caller must call Shutdown to end the
// server. New panics if Options.Sandbox or Options.Audit is a zero value, which would confine or
// record nothing.
func New(opts *Options) *Server {
	s := &Server{conns: make(map[*connection]struct{}), listeners: make(map[net.Listener]struct{})}
	s.confined, s.listingValues = quota.NewSemaphore(maxConfined), maxListingValues
	s.starting = quota.NewSemaphore(maxStarting)
	s.cwd.getwd = os.Getwd
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Extensions != nil {
		s.ext = *s.opts.Extensions
	}
	if s.opts.Auth != nil && s.opts.Auth != Unauthenticated {
		s.auth = &s.opts.Auth.auth
	}
	s.audit, s.sandbox = s.opts.Audit.inner(), s.ext.Sandbox
	if s.opts.Sandbox != nil {
		s.sandbox = s.opts.Sandbox.engine
	}
	if s.opts.Sandbox != nil && s.sandbox == nil || s.opts.Audit != nil && s.audit == nil {
		panic("server: a Sandbox or AuditLog that NewSandbox or OpenAuditLog has not made")
	}
	if s.opts.Log == nil {
		s.opts.Log = slog.New(slog.DiscardHandler)
	}
	if s.opts.Version == "" {
		s.opts.Version = "0.0.0"
	}
	if s.opts.MaxMessageBytes <= 0 {
		s.opts.MaxMessageBytes = transport.DefaultMaxMessageBytes
	}
	if s.opts.MaxConnections <= 0 {
		s.opts.MaxConnections = DefaultMaxConnections
	}
	if s.opts.MaxHTTPBodyBytes <= 0 {
		s.opts.MaxHTTPBodyBytes = DefaultMaxHTTPBodyBytes
	}
	s.pending = newPending(min(maxPending, quarterOfDescriptors()))
	s.refusals = newRefusals(s.opts.Log, s.pending.limit/16+1)
	s.quotas = newQuotas(&s.opts)
	s.admission = &admission{
		opts: &s.opts, log: s.opts.Log, auth: s.auth, admitsNobody: s.opts.Auth == nil, audit: s.audit, refusals: s.refusals,
		pending: s.pending,
	}
	s.admission.closing, s.endAdmission = context.WithCancelCause(context.Background())
	s.admission.judge.Authenticated, s.admission.judge.Isolated = s.auth != nil, sandbox.IsIsolated
	s.counters.begin()
	s.log, s.ownership = s.opts.Log, s.ext.Ownership
	if s.ownership == nil {
		s.ownership = ownership.Default()
	}
	s.sessions = session.New(s.sessionOptions())
	s.streams = s.newStreams()
	return s
}

// sessionOptions returns the options of the server's sessions.
func (s *Server) sessionOptions() *session.Options {
	o := s.opts.Session
	opts := &session.Options{
		Log: s.log, Ownership: s.ownership,
		DetachedTTL: o.DetachedTTL, SilentTTL: o.SilentTTL, MaxKeep: o.MaxKeep, ClosedTTL: o.ClosedTTL,
		MaxSessions: o.MaxSessions, MaxProcesses: o.MaxProcesses, MaxQueuedInput: o.MaxQueuedInput, MaxClosed: o.MaxClosed, MaxObservers: o.MaxObservers,
		AllProcesses: quarterOfDescriptors() / 2, AllWatches: filesystem.MaxWatchers(),
		RetainedBytes: o.RetainedBytes, EvictDetached: o.EvictDetached, DrainTimeout: o.DrainTimeout,
		Recorder: s.ext.Recorder,
	}
	if o.RetainedTotalBytes > 0 {
		opts.Budget = output.NewBudget(o.RetainedTotalBytes)
	}
	opts.Exited = s.exited
	return opts
}

// ServeConn serves one connection until it ends, and returns why it ended. The caller decides
// whether the client may connect: Options.Auth is not consulted. Another connection can resume the
// session afterwards. The server keeps it as SessionOptions says, but if the client has closed the
// connection properly and the session holds nothing, the session ends at once.
func (s *Server) ServeConn(stream transport.Conn) error {
	return s.serve(stream, auth.Unauthenticated, true, nil)
}

// ServeOnly is like ServeConn, but the session ends with the connection, as on stdio: no other
// connection can resume it. If closing the connection does not unblock a Read, ServeOnly returns
// without waiting for it.
func (s *Server) ServeOnly(stream transport.Conn) error {
	return s.serve(stream, auth.Unauthenticated, false, nil)
}

// ServeFor is like ServeConn for a client that a gateway has admitted. assertion names the client
// and its grant, and must come from a gateway that the server trusts.
func (s *Server) ServeFor(stream transport.Conn, assertion []byte) error {
	principal, err := auth.FromAssertion(assertion)
	if err != nil {
		refuseStream(stream, err)
		return err
	}
	return s.serve(stream, principal, true, nil)
}

// serve serves a client. pending is that of its connection, or nil if nothing has bounded its time yet.
func (s *Server) serve(stream transport.Conn, principal *auth.Principal, resumable bool, pending *pendingConnection) error {
	c := newConnection(s, stream, principal, resumable)
	c.handshake.pending = pending
	defer c.handshake.finish()
	s.counters.opened.Add(1)
	if err := s.add(c); err != nil {
		s.refusals.counts.Add(RefusedShutdown)
		c.log.Warn("connection refused", "reason", err)
		refuseStream(stream, err)
		return err
	}
	defer s.remove(c)
	if err := s.audit.Commit(c.event("connection opened")); err != nil {
		s.refusals.counts.Add(RefusedAudit)
		c.log.Warn("connection refused", "reason", err)
		refuseStream(stream, err)
		return err
	}
	return c.run(stream)
}

// add admits a connection.
func (s *Server) add(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown {
		return ErrClosed
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	return nil
}

func (s *Server) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.uncountLocked(c)
	s.wg.Done()
}

// reserve reserves a slot for a connection that wants a new session, or none.
func (s *Server) reserve(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, served := s.conns[c]; !served {
		return ErrClosed
	}
	switch refusal := s.quotas.connections.Check(c.principal.QuotaKey()); {
	case refusal == nil:
		s.countLocked(c)
		return nil
	case refusal.Principal:
		return errors.New(refusal.Of("has", "connections"))
	}
	return fmt.Errorf("the server has its limit of %d connections", s.opts.MaxConnections)
}

// mayObserve refuses one more observer to a principal that has its quota of connections. A
// session bounds its own observers, but a principal may observe many sessions.
func (s *Server) mayObserve(c *connection) error {
	if refusal := s.quotas.connections.Check(c.principal.QuotaKey()); refusal != nil && refusal.Principal {
		return errors.New(refusal.Of("has", "connections"))
	}
	return nil
}

// countLocked counts a connection among those with a session.
func (s *Server) countLocked(c *connection) {
	if !c.counted {
		s.quotas.connections.Add(c.principal.QuotaKey())
		c.counted = true
	}
}

// uncount removes a connection from those with a session.
func (s *Server) uncount(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncountLocked(c)
}

func (s *Server) uncountLocked(c *connection) {
	if c.counted {
		s.quotas.connections.Release(c.principal.QuotaKey())
		c.counted = false
	}
}

// countInitialized counts a connection that its client has initialized, unless it has ended.
func (s *Server) countInitialized(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, served := s.conns[c]; served {
		s.countLocked(c)
	}
}

// closing reports whether Shutdown was called.
func (s *Server) closing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown
}

// Drain makes the server refuse new sessions. Clients can still resume existing ones. The
// channel is closed when no session is left; Shutdown then interrupts nothing.
func (s *Server) Drain() (drained <-chan struct{}) { return s.sessions.Drain() }

// Draining reports whether Drain was called.
func (s *Server) Draining() bool { return s.sessions.Draining() }

// Shutdown ends everything: the listeners of ServeWebSocket and ServeUnix, then all processes,
// then the connections, whose clients are notified of the shutdown. It returns when all of these
// have ended, or when ctx is done, with the cause of ctx; call FinishWrites afterwards. A program
// with an http.Server of its own must shut that down as well, which does not end WebSocket
// connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.shutdown = true
	for l := range s.listeners {
		_ = l.Close()
	}
	conns := make([]*connection, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	s.endAdmission(ErrClosed)
	s.sessions.Close("server shutdown")
	for _, c := range conns {
		c.shutDown()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.sessions.Wait()
		_ = s.streams.Shutdown(ctx)
		s.wg.Wait()
		_ = s.inPlace.wait(context.Background())
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// FinishWrites waits until no write in place is in progress, or returns the context's cause.
// After Shutdown no such write begins, but writes in progress continue. A program that exits
// without waiting for them leaves incomplete files behind.
func (s *Server) FinishWrites(ctx context.Context) error { return s.inPlace.wait(ctx) }

// Recheck ends the connections whose credentials are no longer valid, and the sessions
// that were created with them. The caller must refresh Options.Auth first.
func (s *Server) Recheck() {
	s.mu.Lock()
	var revoked []*connection
	for c := range s.conns {
		if !s.auth.Valid(c.principal) {
			revoked = append(revoked, c)
		}
	}
	s.mu.Unlock()
	for _, c := range revoked {
		c.end(errRevoked)
	}
	if s.ext.Gateway != nil {
		s.ext.Gateway.Recheck(s.auth.Valid)
	}
	// The connections that could create other sessions have ended.
	s.sessions.EndRevoked(errRevoked.Error())
}

// Ready returns why the server would refuse a new client or its starts now, or nil. It
// checks what concerns every client: a drain, the limits of connections and sessions, an audit
// log that is required, a sandbox that is required, and free descriptors. "/readyz" answers
// with its text.
func (s *Server) Ready() error {
	if s.closing() {
		return errors.New("the server is shutting down")
	}
	if s.Draining() {
		return errors.New("the server is draining: it takes no new sessions")
	}
	if s.quotas.connections.Check(quota.None) != nil {
		return fmt.Errorf("the server has its limit of %d connections", s.opts.MaxConnections)
	}
	if s.sessions.Full() {
		return errors.New("the server has its limit of sessions, and none is idle")
	}
	if s.sandbox != nil && s.sandbox.Mode() == sandbox.ModeRequire {
		if means, _ := s.sandbox.Mechanism(); means == sandbox.MechanismNone {
			return errors.New("the server requires sandboxes, and this machine has none")
		}
	}
	if gateway := s.ext.Gateway; gateway != nil {
		if err := gateway.Ready(); err != nil {
			return err
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return errors.New("the server can open no file")
	}
	_ = null.Close()
	if err := s.audit.Ready(); err != nil {
		return errors.New("the audit log, which is required, cannot be written")
	}
	return nil
}

// exited counts and records how a process ended.
func (s *Server) exited(of *session.Session, id string, exit protocol.ExitRecord) {
	s.counters.endings.Add(endingOf(exit))
	s.auditExit(of, id, exit)
}

// auditExit records how a process ended.
func (s *Server) auditExit(of *session.Session, id string, exit protocol.ExitRecord) {
	s.audit.Record(audit.Event{
		Event: "exit", Principal: of.Principal, Session: of.ID, Process: id,
		ExitCode: &exit.ExitCode, Signal: exit.Signal, EndedBy: string(exit.EndedBy),
	})
}
