// Package server serves the exec-server protocol, by which clients run commands and use
// files on this machine. PROTOCOL.md describes the protocol; package client is a client.
//
// [New] makes a [Server]. [Server.Handler] serves WebSocket clients in a web server of the
// caller's, [Server.ServeWebSocket] and [Server.ServeUnix] serve a listener, and
// [Server.ServeConn] and [Server.ServeOnly] one connection. Each client has a session, in
// which its processes run. [Server.Shutdown] ends everything.
//
// A client can do what the server's user can do. So a server admits no WebSocket client
// until [Options] says whom: clients with a token or a certificate, by [NewAuthenticator],
// or everybody, by [Unauthenticated]. A [Sandbox] confines the commands and file
// operations for which a client requests it; a program that has one calls [RunHelper]
// first in main.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/ownership"
	"execserver/internal/peer"
	"execserver/internal/quota"
	"execserver/internal/sandbox"
	"execserver/internal/session"
	"execserver/transport"
)

// DefaultMaxConnections is how many connections have a session at the same time
// unless told otherwise.
const DefaultMaxConnections = 1024

// abandonTimeout bounds the wait for the goroutines of a connection that has ended; each
// of them ends by itself. When the connection is the only one, its reader may be in a
// read of standard input that only the end of the program interrupts, and the program
// ends then.
const (
	abandonTimeout     = 5 * time.Second
	abandonOnlyTimeout = 20 * time.Millisecond
)

// Server serves any number of connections. All methods may be called
// concurrently.
type Server struct {
	opts         Options
	auth         *auth.Authenticator // nil admits everybody
	admitsNobody bool                // Options.Auth is nil
	audit        *audit.Log          // nil records nothing
	sandbox      *sandbox.Engine     // nil refuses every sandbox
	log          *slog.Logger
	ownership    *ownership.Ownership
	cwd          cwd
	starting     *quota.Semaphore // slots of starts that are under way, by session
	sessions     *session.Sessions

	judge         peer.Judge
	pending       *pending
	refusals      *refusals
	confined      *quota.Semaphore // of helpers in sandboxes
	overHTTP      atomic.Bool      // Handler was called
	quotas        quotas
	listingValues int // JSON values in a listing
	counters      counters

	mu        sync.Mutex
	conns     map[*connection]struct{}
	listeners map[net.Listener]struct{}
	shutdown  bool
	wg        sync.WaitGroup // connections being served

	inPlace unfinished // writes in place, which other programs see half done
}

// ErrClosed is the error of the serving methods after Shutdown.
var ErrClosed = errors.New("server closed")

// New returns a server. nil means the default Options. The caller ends the server by
// Shutdown. New panics if Options.Sandbox or Options.Audit is a zero value, which would
// confine or record nothing.
func New(opts *Options) *Server {
	s := &Server{conns: make(map[*connection]struct{}), listeners: make(map[net.Listener]struct{})}
	s.confined, s.listingValues = quota.NewSemaphore(maxConfined), maxListingValues
	s.starting = quota.NewSemaphore(maxStarting)
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Auth != nil && s.opts.Auth != Unauthenticated {
		s.auth = &s.opts.Auth.auth
	}
	s.admitsNobody = s.opts.Auth == nil
	s.judge.Proven = s.auth != nil
	s.audit, s.sandbox = s.opts.Audit.inner(), s.opts.Internal.Sandbox
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
	s.counters.begin()
	s.log, s.ownership = s.opts.Log, s.opts.Internal.Ownership
	if s.ownership == nil {
		s.ownership = ownership.Default()
	}
	s.sessions = session.New(s.sessionOptions())
	return s
}

// ServeConn serves one connection until it ends, and returns why. The caller has decided
// that the client may connect: Options.Auth does not count. The session then lives on for
// Options.Session.DetachedTTL, and another connection can resume it.
func (s *Server) ServeConn(stream transport.Conn) error {
	return s.serve(stream, auth.Anybody, true)
}

// ServeOnly is like ServeConn for a connection to which nobody can come back, as on stdio:
// its session ends with it. ServeOnly does not wait for a read that cannot be interrupted.
func (s *Server) ServeOnly(stream transport.Conn) error {
	return s.serve(stream, auth.Anybody, false)
}

func (s *Server) serve(stream transport.Conn, principal *auth.Principal, resumable bool) error {
	c := newConnection(s, stream, principal, resumable)
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
	c.log.Info("connection opened")
	c.beginHandshake(stream)
	if !s.auth.Holds(principal) { // they may have been revoked a moment ago
		c.end(errRevoked)
	}
	gone := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = c.rpc.Run() // the context's cause is the same
		c.rpc.Wait()
		c.http.close()
	})
	if !principal.Expires.IsZero() {
		wg.Go(c.expire)
	}
	<-c.rpc.Context().Done()
	c.endHandshake()
	c.leave()
	c.tcp.Close(context.Cause(c.rpc.Context()))
	<-c.rpc.Closed()
	wg.Go(c.release)
	go func() {
		defer close(gone)
		wg.Wait()
	}()
	timeout := abandonTimeout
	if !resumable {
		timeout = abandonOnlyTimeout
	}
	select {
	case <-gone:
	case <-time.After(timeout):
		// A read of stdin outside the poller cannot be interrupted, and neither can a
		// file system that does not answer.
	}
	err := context.Cause(c.rpc.Context())
	c.log.Info("connection closed", "reason", err)
	closed := c.event("connection closed")
	closed.Reason = err.Error()
	s.audit.Record(closed)
	return err
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

// closing reports whether Shutdown was called.
func (s *Server) closing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown
}

// Drain makes the server refuse new sessions. Clients can still resume the sessions that
// there are. The channel is closed when none is left, and the caller can then call
// Shutdown without breaking anything.
func (s *Server) Drain() (drained <-chan struct{}) { return s.sessions.Drain() }

// Draining reports whether Drain was called.
func (s *Server) Draining() bool { return s.sessions.Draining() }

// Shutdown ends everything: the listeners of ServeWebSocket and ServeUnix, then all
// processes, then the connections, whose clients learn that the server shuts down. It
// returns when all are gone, or with the context's cause. End an http.Server of your own
// as well: its Shutdown does not end WebSocket connections. The caller may then have to wait for FinishWrites.
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
	s.sessions.Close("server shutdown")
	for _, c := range conns {
		c.shutDown()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.sessions.Wait()
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
