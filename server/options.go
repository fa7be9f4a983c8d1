package server

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/internal/sandbox"
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
	// Peers may connect to a unix socket, in addition to the server's own user and root;
	// nil means no others.
	Peers *Peers
	// AnyLoopbackPeer admits every user of this machine over loopback, not only the
	// server's own user and root. It matters only with Unauthenticated: an Authenticator
	// admits every user with valid credentials.
	AnyLoopbackPeer bool
	// AllowConfinedPeers admits processes of this machine that are confined, or may be: see
	// docs/security.md. Commands in sandboxes and containers can then escape through this
	// server.
	AllowConfinedPeers bool
	// ConfinedPeersHint is added to the errors for such processes. It describes how to set
	// AllowConfinedPeers in this program.
	ConfinedPeersHint string
	// AllowHosts are names, without a port, by which clients may address this machine
	// over loopback, in addition to localhost and loopback addresses.
	AllowHosts []string
	// AllowOrigins are the origins of pages that may connect, as browsers spell them:
	// scheme://host[:port]. The server refuses all other pages.
	AllowOrigins []string

	// AllowDirectExec and AllowPreparedExec let clients start programs with exactly their
	// own environment, and without looking anything up (EXTENSIONS.md, "processDirectExec and
	// processPreparedExec").
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

	// NoDirectoryHint is added to the error for a process whose working directory does not
	// exist. It explains how to solve the problem to people who see only the server's errors.
	NoDirectoryHint string

	// StreamKeep is how long a stream of ServeUnix lasts without a link, by default 30 minutes. Its
	// session is detached afterwards.
	StreamKeep time.Duration

	// Session has the limits of sessions, and of the output that they retain.
	Session SessionOptions

	// PingInterval is the time between two pings to a client, by default 15 seconds.
	// ProbeTimeout is how long a client may take to answer when another one asks for its
	// session, by default 1 second.
	PingInterval, ProbeTimeout time.Duration

	// Extensions are parts of a server that only the programs of this module have. Other
	// programs leave it nil.
	Extensions *extension.Options

	// inside is set in a helper, which is in a sandbox already.
	inside bool
}

// SessionOptions are the limits of the sessions of a server, and of the output that a session
// retains for a client that loses its connection and returns. Zero values mean the defaults.
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

	// DrainTimeout bounds the time after the exit of a process in which its descendants can
	// delay its closing by writing to its streams. 0 means 2 seconds; a negative value means
	// as long as they hold the streams open.
	DrainTimeout time.Duration
}

// Sandbox confines commands and file operations for which a client requests a sandbox.
// [NewSandbox] makes one. Several servers may use it.
type Sandbox struct {
	engine *sandbox.Engine
}

// SandboxMode selects when and how a Sandbox confines.
type SandboxMode string

// The values of SandboxMode.
const (
	SandboxAuto     SandboxMode = "auto"     // enforce what clients request, or refuse it
	SandboxRequire  SandboxMode = "require"  // the same, and start nothing without a sandbox
	SandboxLandlock SandboxMode = "landlock" // use only Landlock, and refuse policies that need more
)

// SandboxOptions are the options of NewSandbox. The zero value means the defaults. All
// paths are absolute.
type SandboxOptions struct {
	Log  *slog.Logger // nil discards
	Mode SandboxMode  // default SandboxAuto

	// Sockets are unix sockets of other programs, or directories with such sockets, that
	// confined commands with a network may use.
	Sockets []string
	// Hide lists paths that are hidden from confined commands, such as the server's own
	// unix socket.
	Hide []string
	// Auth is the server's Authenticator. Under no policy can confined commands read its
	// secret files or write any of its files, including those that it begins to use later.
	Auth *Authenticator
	// Secrets lists more files that confined commands can neither read nor write, such as
	// the audit log and the key of a TLS certificate. Protected lists more files that they
	// cannot write.
	Secrets, Protected []string
}

// NewSandbox returns a Sandbox, which determines in the background which mechanisms this
// machine supports. A program that uses it must call [RunHelper] at the start of main. If
// there is no mechanism, or the program does not call RunHelper, the server refuses every
// request for a sandbox. Close the Sandbox after the Shutdown of its Server. NewSandbox panics
// if the mode is unknown.
func NewSandbox(opts SandboxOptions) *Sandbox {
	switch opts.Mode {
	case "", SandboxAuto, SandboxRequire, SandboxLandlock:
	default:
		panic("server: unknown SandboxMode " + strconv.Quote(string(opts.Mode)))
	}
	secrets, protected := slices.Clone(opts.Secrets), slices.Clone(opts.Protected)
	files := func(own []string, kind auth.FileKind) []string { return slices.Concat(own, opts.Auth.paths(kind)) }
	return &Sandbox{sandbox.New(&sandbox.Options{
		Log: opts.Log, Mode: sandbox.Mode(opts.Mode), Sockets: opts.Sockets, Hide: opts.Hide,
		Secrets: func() []string { return files(secrets, auth.SecretFile) },
		Trusted: func() []string { return files(protected, auth.PublicFile) },
	})}
}

// Close releases the resources of the Sandbox. The caller must wait until no confined command
// runs. Close may be called more than once.
func (s *Sandbox) Close() { s.engine.Close() }

// RunHelper returns immediately, unless a Server has started this process as a helper for its
// sandbox. Then it does the helper's work and exits.
//
// A Server with a sandbox starts its own program again: to confine a command before executing it,
// and to read and write files inside a sandbox. A program with such a Server must therefore call
// RunHelper first in main, and its tests in TestMain:
//
//	func main() {
//		server.RunHelper()
//		...
//	}
//
// Without the call, the Server refuses every sandbox. A helper needs descriptors from the Server, so
// a user cannot start one by its arguments.
func RunHelper() { runHelper() }

// AuditLog records what clients do, one JSON object to a line. [OpenAuditLog] opens one;
// close it after the Shutdown of its Server. Its methods may be called concurrently. Those
// of a nil *AuditLog do nothing.
type AuditLog struct {
	log *audit.Log
}

// OpenAuditLog opens the audit log at path for appending, or creates it with mode 0600. It
// refuses a symbolic link, and a file that others own or may read. The path "-" means
// standard error. If required is true, the server refuses requests that it cannot record;
// otherwise it counts the lost events in the log. The server reports failed writes to log; nil
// discards them.
func OpenAuditLog(path string, required bool, log *slog.Logger) (*AuditLog, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l, err := audit.Open(path, required, log)
	if err != nil {
		return nil, err
	}
	return &AuditLog{l}, nil
}

// Reopen opens the file at the same path again, after another program has renamed it.
// After an error the log continues in the previous file.
func (l *AuditLog) Reopen() error { return l.inner().Reopen() }

// Close writes the pending events and a last one, "closed", and closes the file.
func (l *AuditLog) Close() { l.inner().Close() }

func (l *AuditLog) inner() *audit.Log {
	if l == nil {
		return nil
	}
	return l.log
}
