// Package server serves the exec-server protocol: it accepts connections,
// authenticates them, binds each to a session, and maps the methods of the wire
// to what they do.
//
// Start at [New]. A request's way: [Server.Handler] or [Server.ServeConn]
// accepts the connection, connection.Request finds the method in the table of
// methods.go, and the method's function does it.
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
	"execserver/internal/peer"
	"execserver/internal/sandbox"
	"execserver/process"
	"execserver/session"
	"execserver/transport"
)

// DefaultMaxConnections is how many connections have a session at the same time
// unless told otherwise.
const DefaultMaxConnections = 1024

// abandonTimeout bounds the wait for the goroutines of a connection that has
// ended; each of them is bound to end by itself. Where the connection is the
// only one, its reader may be in a read of standard input that nothing but the
// end of the program can interrupt, and that is what its end leads to.
const (
	abandonTimeout     = 5 * time.Second
	abandonOnlyTimeout = 20 * time.Millisecond
)

// Options of a Server. The zero value means the defaults.
type Options struct {
	Log             *slog.Logger // nil: discard
	Version         string       // told to clients as executorVersion; default "0.0.0"
	MaxMessageBytes int64        // of one incoming message; default transport.DefaultMaxMessageBytes

	// MaxConnections is from how many connections with a session on no other one gets a
	// new session; default DefaultMaxConnections. Whoever comes back to a session, or
	// observes one, is let in all the same: Session.MaxSessions and Session.MaxObservers
	// bound how many those are, and Startups those that have no session yet.
	MaxConnections int

	// MaxHTTPBodyBytes bounds the body of an HTTP response that is not
	// streamed; default DefaultMaxHTTPBodyBytes.
	MaxHTTPBodyBytes int64
	// DurableWrites makes every write of a file wait until its content is on
	// disk.
	DurableWrites bool

	// Auth decides about WebSocket upgrades; nil lets everybody in.
	Auth *auth.Authenticator
	// Peers are those who may connect to a unix socket; nil: the own user, and
	// root.
	Peers *auth.Peers
	// AnyLoopbackPeer lets every user of this machine in who connects over loopback
	// without authentication, not only the server's own and root.
	AnyLoopbackPeer bool
	// AllowHosts are names, without a port, by which clients may call this machine
	// over loopback, besides localhost and addresses of loopback.
	AllowHosts []string
	// AllowOrigins are the origins of pages that may connect, as browsers spell
	// them: scheme://host[:port]. All other pages are refused.
	AllowOrigins []string
	// Startups and Penalties bound what those do who are not admitted yet; the zero
	// values mean the defaults.
	Startups  Startups
	Penalties Penalties

	// AllowDirectExec and AllowPreparedExec let clients start programs in an
	// environment of theirs alone, and without looking anything up (PROTOCOL.md,
	// "Direct and prepared starts").
	AllowDirectExec, AllowPreparedExec bool
	// AllowKeepDescendants lets clients start processes that leave something
	// running which nobody owns.
	AllowKeepDescendants bool

	// Audit is where is written what clients do; nil: nowhere.
	Audit *audit.Log

	// Sandbox enforces the sandboxes that clients ask for; nil: they are refused.
	// The caller closes it after Shutdown.
	Sandbox *sandbox.Engine
	// inside serves within a sandbox, which is not asked for again.
	inside bool

	// Session are the options of the sessions; its Log defaults to Log.
	Session session.Options

	// PingInterval and ProbeTimeout are those of rpc.Options.
	PingInterval, ProbeTimeout time.Duration
}

// Server serves any number of connections. All methods may be called
// concurrently.
type Server struct {
	opts      Options
	log       *slog.Logger
	ownership *process.Ownership
	sessions  *session.Sessions

	holders        peer.Holders
	localAddresses localAddresses
	penalties      *penalties
	startups       *startups
	confined       chan struct{} // a place for each helper in a sandbox
	operations     atomic.Int64  // on files, under way
	maxOperations  int64         // maxFileOperations, but in tests

	mu        sync.Mutex
	conns     map[*connection]struct{}
	greetings arrivals[*connection] // those of conns that have no session yet
	seated    int                   // those that have one
	listeners map[net.Listener]struct{}
	shutdown  bool
	wg        sync.WaitGroup // connections being served

	inPlace unfinished // writes of files that others see half done
}

// ErrClosed is returned by the serving methods after Shutdown.
var ErrClosed = errors.New("server closed")

// New makes a server.
func New(opts *Options) *Server {
	s := &Server{conns: make(map[*connection]struct{}), listeners: make(map[net.Listener]struct{})}
	s.confined = make(chan struct{}, maxConfined)
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Sandbox != nil {
		sandbox.ReserveThreads()
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
	if s.opts.Startups == (Startups{}) {
		s.opts.Startups = DefaultStartups
	}
	if s.opts.Penalties == (Penalties{}) {
		s.opts.Penalties = DefaultPenalties
	}
	s.penalties = newPenalties(s.opts.Penalties, s.opts.Log)
	s.startups = newStartups(s.opts.Startups, s.penalties)
	if s.opts.Session.Log == nil {
		s.opts.Session.Log = s.opts.Log
	}
	if s.opts.Audit != nil {
		s.opts.Session.Exited = s.auditExit
	}
	s.maxOperations = maxFileOperations
	if s.opts.Session.Ownership == nil {
		s.opts.Session.Ownership = process.DefaultOwnership()
	}
	s.log, s.ownership = s.opts.Log, s.opts.Session.Ownership
	s.sessions = session.New(&s.opts.Session)
	return s
}

// ServeConn serves one connection until it ends and returns why. When it has
// ended, its session lives on for the detached TTL, and can be resumed by
// another connection.
func (s *Server) ServeConn(stream transport.Conn) error {
	return s.serve(stream, auth.Anybody, true)
}

// ServeOnly serves a connection that nobody can come back to, as on stdio: its
// session ends with it. A read of it that cannot be interrupted is left behind.
func (s *Server) ServeOnly(stream transport.Conn) error {
	return s.serve(stream, auth.Anybody, false)
}

func (s *Server) serve(stream transport.Conn, principal *auth.Principal, resumable bool) error {
	c := newConnection(s, stream, principal, resumable)
	if err := s.add(c); err != nil {
		c.log.Warn("connection refused", "reason", err)
		refuseStream(stream, err)
		return err
	}
	defer s.remove(c)
	if err := s.opts.Audit.Commit(c.event("connection opened")); err != nil {
		c.log.Warn("connection refused", "reason", err)
		refuseStream(stream, err)
		return err
	}
	c.log.Info("connection opened")
	c.awaitGreeting(stream)
	if !s.opts.Auth.Holds(principal) { // not since a moment ago
		c.end(errRevoked)
	}
	gone := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = c.rpc.Run() // the context's cause tells the same
		c.rpc.Wait()
		c.http.close()
	})
	if !principal.Expires.IsZero() {
		wg.Go(c.expire)
	}
	<-c.rpc.Context().Done()
	if c.greeting != nil {
		c.greeting.Stop()
	}
	c.leave()
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
		// Reading stdin cannot be interrupted where it is not in the poller,
		// nor can a file system that does not answer.
	}
	err := context.Cause(c.rpc.Context())
	c.log.Info("connection closed", "reason", err)
	closed := c.event("connection closed")
	closed.Reason = err.Error()
	s.opts.Audit.Record(closed)
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
	s.unqueueLocked(c)
	s.standLocked(c)
	s.wg.Done()
}

// closing reports whether Shutdown was called.
func (s *Server) closing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown
}

// Shutdown ends everything: listeners, then all processes, then the
// connections, which are told that the server goes away. It returns when all
// are gone, or with the context's cause; FinishWrites may have to be waited for
// then.
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
		c.rpc.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "server is shutting down"}, ErrClosed)
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
