package server

import (
	"log/slog"
	"net/http"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/sandbox"
	"execserver/internal/session"
	"execserver/transport"
)

// Options of a Server. The zero value means the defaults. The Server copies the Options,
// but shares what they point to.
type Options struct {
	Log             *slog.Logger // nil discards
	Version         string       // clients see it as executorVersion; default "0.0.0"
	MaxMessageBytes int64        // of one message from a client; default transport.DefaultMaxMessageBytes

	// MaxConnections is the number of connections with a session at which the server
	// refuses new sessions; default DefaultMaxConnections. It still admits a connection
	// that resumes or observes a session: Session.MaxSessions and Session.MaxObservers
	// bound those.
	MaxConnections int

	// MaxHTTPBodyBytes bounds the body of an HTTP response that is not streamed; default
	// DefaultMaxHTTPBodyBytes.
	MaxHTTPBodyBytes int64
	// DurableWrites makes every file write wait until its content is on disk.
	DurableWrites bool

	// Auth decides which WebSocket clients may connect. With nil the server admits none;
	// Unauthenticated admits all.
	Auth *Authenticator
	// Peers may connect to a unix socket, besides the server's own user and root; nil
	// means nobody else.
	Peers *Peers
	// AnyLoopbackPeer admits every user of this machine over loopback, not only the
	// server's own user and root. It matters only with Unauthenticated: an Authenticator
	// admits whoever has valid credentials.
	AnyLoopbackPeer bool
	// AllowConfinedPeers admits processes of this machine that are confined, and those of
	// which nobody can tell: see docs/security.md. The commands of sandboxes and containers
	// can then get out through this server.
	AllowConfinedPeers bool
	// ConfinedPeersHint says how to set AllowConfinedPeers, in the errors for such processes;
	// "" says nothing.
	ConfinedPeersHint string
	// AllowHosts are names, without a port, by which clients may address this machine
	// over loopback, besides localhost and loopback addresses.
	AllowHosts []string
	// AllowOrigins are the origins of pages that may connect, as browsers spell them:
	// scheme://host[:port]. The server refuses all other pages.
	AllowOrigins []string

	// AllowDirectExec and AllowPreparedExec let clients start programs with exactly their
	// own environment, and without looking anything up (PROTOCOL.md, "Direct and prepared
	// starts").
	AllowDirectExec, AllowPreparedExec bool

	// Metrics, if not nil, makes the handler of "/metrics" for the listeners of WebSocket
	// clients. Only clients that may observe the sessions of others reach it.
	Metrics func(*Server) http.Handler

	// Audit records what clients do; nil records nothing. The caller must close it after
	// Shutdown.
	Audit *AuditLog

	// Sandbox enforces the sandboxes that clients request; with nil the server refuses
	// them. The caller must close it after Shutdown.
	Sandbox *Sandbox

	// NoDirectoryHint says what to do, in the error for a process whose working directory does
	// not exist. It is for people who see the errors of the server alone; "" says nothing.
	NoDirectoryHint string

	// Session has the limits of sessions, and of what they keep for clients that return.
	Session SessionOptions

	// PingInterval is the time between two pings to a client, by default 15 seconds.
	// ProbeTimeout is how long a client may take to answer when another one asks for its
	// session, by default 1 second.
	PingInterval, ProbeTimeout time.Duration

	// Internal is for the programs of this module. Others leave it zero.
	Internal Internal

	// inside is set in a helper, which is in a sandbox already.
	inside bool
}

// SessionOptions are the limits of the sessions of a server, and of what a session keeps
// for a client that loses its connection and returns. Zero values mean the defaults.
type SessionOptions struct {
	// A session without a connection ends after DetachedTTL, by default 90 seconds, and
	// the server kills its processes. If the client has only fallen silent, as a sleeping
	// laptop does, the session ends after SilentTTL, by default 30 minutes and at least
	// DetachedTTL.
	DetachedTTL, SilentTTL time.Duration

	// MaxKeep is the longest lease by which a client keeps its session without a
	// connection, by default 24 hours. A negative value refuses leases.
	MaxKeep time.Duration

	MaxSessions    int // of the server, with and without a connection; default 1,024
	MaxProcesses   int // of one session, until they are closed; default 4,096
	MaxQueuedInput int // bytes of stdin that wait for all processes to read them; default 256 MiB
	MaxObservers   int // connections that observe one session; default 16

	// A session remembers a closed process for ClosedTTL, by default DetachedTTL and at
	// least 80 seconds, and no more than MaxClosed of them, by default 4,096.
	ClosedTTL time.Duration
	MaxClosed int

	// RetainedBytes bounds the output that the server retains for a process, by default
	// 4 MiB, and RetainedTotalBytes that for all processes together, by default 512 MiB.
	RetainedBytes, RetainedTotalBytes int64
	// EvictDetached makes the server evict the oldest output of a process of a session
	// without a connection when it has retained that much. Otherwise the process blocks.
	EvictDetached bool

	// DrainTimeout bounds how long after the exit of a process its descendants delay its
	// closing by writing to its streams. 0 means 2 seconds; a negative value means as
	// long as they hold the streams.
	DrainTimeout time.Duration
}

// Internal has the options whose types are internal to this module.
type Internal struct {
	Ownership *ownership.Ownership // finds the descendants of processes; nil uses process groups
	Sandbox   *sandbox.Engine      // instead of Options.Sandbox
	Recorder  Recorder             // records processes; nil records nothing
	Page      Page                 // for browsers, beside the WebSocket endpoint; nil serves none

	Gateway Gateway // passes clients on to other machines; nil serves none
	Machine string  // the name under which this server has joined a fleet, if any

	// Relay serves the connections of listeners instead of the server, which only decides
	// who may connect. It ends the connection before it returns.
	Relay func(transport.Conn) error
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
		Recorder: s.opts.Internal.Recorder,
	}
	if o.RetainedTotalBytes > 0 {
		opts.Budget = output.NewBudget(o.RetainedTotalBytes)
	}
	opts.Exited = s.exited
	return opts
}
