package client

import (
	"crypto/tls"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"time"
)

// Defaults of Options.
const (
	DefaultConnectTimeout    = 10 * time.Second
	DefaultInitializeTimeout = 10 * time.Second
	DefaultRecoveryTimeout   = 45 * time.Second
	DefaultReplayEvents      = 256
	DefaultReplayBytes       = 1 << 20
)

// Options configures an Environment. A nil *Options and zero values mean the defaults. The
// constructors copy the Options, so one value may serve several calls.
type Options struct {
	// Name is the client's name, which the server records. The default is
	// "exec-server-client".
	Name string
	Log  *slog.Logger // nil discards

	// Token is the bearer token for the upgrade of a WebSocket. TokenFile names a file
	// with the token instead, which the client reads for every connection. At most one of
	// them may be set (docs/security.md, "How a client gets in").
	Token     string
	TokenFile string
	TLS       *tls.Config // for wss; nil uses the system's roots

	// ServerUser is the name or the id of a user whose server may receive the token, in addition
	// to this program's user and root. On Linux, before the client sends a token without TLS over
	// loopback, to the server or to a proxy, it asks the kernel which user has accepted the
	// connection (docs/security.md).
	ServerUser string

	// AllowConfinedPeers lets local processes in sandboxes and containers connect to listeners of
	// Environment.Forward.
	AllowConfinedPeers bool

	// ConnectTimeout limits one attempt to connect, and InitializeTimeout the handshake after
	// it. While exec-server connect uploads the server, progress restarts InitializeTimeout.
	ConnectTimeout    time.Duration
	InitializeTimeout time.Duration

	// RecoveryTimeout limits the total time of attempts to replace a broken connection. A new
	// connection that breaks within 5 s, before it has delivered anything, does not restart the
	// time. If it is negative, the client does not reconnect. It should be shorter than
	// Info.SessionLifetime.Detached; see RecoverWhileKept.
	RecoveryTimeout time.Duration

	// OnState is called in order, never concurrently, when the state of the connection has
	// changed. It may block, and may call Close. If it blocks for long, intermediate states may be
	// skipped. Once Close or Detach has been called, OnState is not called again.
	OnState func(State)

	// Session is the id of a session on the server (Environment.Session) that the Environment
	// resumes; see Environment.Attach. Observe is the id of a session that the Environment
	// observes instead, and that another program may own; see Environment.TakeOver. At most one
	// of them may be set.
	//
	// If the session does not exist, the error of the constructor matches ErrUnknownSession. If
	// another connection owns the session to resume, it matches protocol.ErrSessionAttached.
	// Sessions outlive connections only on a server that listens or serves several connections.
	Session string
	Observe string

	// NoSession makes an Environment without a session, which leaves nothing on the server. Only
	// Info, Sessions, AllProcesses, AllUsage, SignalIn, TerminateIn, EndSession, Recordings,
	// Recording and WebLink work; other calls to the server fail with ErrNoSession. If the server
	// lacks the capability sessionList, the error of Dial matches an *UnsupportedError.
	NoSession bool

	// Compression selects when the client asks the server to compress output, input and files.
	Compression Compression

	// FailFast makes calls during recovery fail with ErrRecovering instead of waiting.
	FailFast bool

	// ReplayEvents and ReplayBytes bound the events of each process, and the bytes of their
	// output, that the client keeps for late or slow loops over Process.Events. Values of 0 or
	// less mean DefaultReplayEvents and DefaultReplayBytes.
	ReplayEvents int
	ReplayBytes  int

	// The following are for tests.
	pingInterval time.Duration // 0: the default of package rpc
	cleanupTime  time.Duration // bounds what a copy does after its end; 0: two seconds
}

// RecoverWhileKept is a value of Options.RecoveryTimeout: the client tries to reconnect for as long
// as the server may keep the session. That is the longest of Info.SessionLifetime's Detached and
// Silent and the lease of Keep, plus one minute, because the server may notice the break later. The
// client stops when the server answers that the session does not exist. If the server does not
// report a lifetime, RecoverWhileKept means DefaultRecoveryTimeout.
const RecoverWhileKept time.Duration = math.MaxInt64

func (o *Options) withDefaults() Options {
	var result Options
	if o != nil {
		result = *o
	}
	o = &result
	if o.Name == "" {
		o.Name = "exec-server-client"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = DefaultConnectTimeout
	}
	if o.InitializeTimeout <= 0 {
		o.InitializeTimeout = DefaultInitializeTimeout
	}
	if o.RecoveryTimeout == 0 {
		o.RecoveryTimeout = DefaultRecoveryTimeout
	}
	if o.ReplayEvents <= 0 {
		o.ReplayEvents = DefaultReplayEvents
	}
	if o.ReplayBytes <= 0 {
		o.ReplayBytes = DefaultReplayBytes
	}
	return result
}

// Capabilities of servers (PROTOCOL.md, "Environment"), as in Info.Capabilities.
const (
	capCloseStdin        = "processCloseStdin"
	capDrain             = "processDrain"
	capLimits            = "processLimits"
	capResize            = "processResize"
	capSignals           = "processSignals"
	capTerminateGraceful = "processTerminateGraceful"
	capAck               = "processAck"
	capBinary            = "binaryFrames"
	capCompress          = "compress"
	capHTTPCancel        = "httpRequestCancel"
	capStartID           = "startId"
	capMetadata          = "fsMetadata"
	capRename            = "fsRename"
	capWatch             = "fsWatch"
	capFileMode          = "fsWriteFileMode"
	capFileReplace       = "fsWriteFileReplace"
	capFileWriting       = "fileWriteStreaming"
	capKeep              = "sessionKeep"
	capControl           = "sessionControl"
	capList              = "processList"
	capSessions          = "sessionList"
	capUsage             = "processUsage"
	capObserve           = "sessionObserve"
	capSnapshot          = "processSnapshot"
	capScreen            = "processScreen"
	capTCPOpen           = "tcpOpen"
	capRecordings        = "recordings"
	capWebLink           = "webLink"
)

// Compression selects when to compress data sent to and from a server. It has no effect if the
// server lacks the capability compress (EXTENSIONS.md).
type Compression int

const (
	// CompressRemote compresses unless the server is reached over loopback, a unix socket or
	// memory. It is the default.
	CompressRemote Compression = iota
	CompressAlways             // compress in every case
	CompressNever              // never compress
)

// wanted reports whether to ask a server for compression; remote is its Conn.Remote.
func (c Compression) wanted(remote string) bool {
	switch c {
	case CompressAlways:
		return true
	case CompressNever:
		return false
	}
	if remote == "unix socket" || remote == "in-process connection" {
		return false
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote // a URL may have no port
	}
	address, err := netip.ParseAddr(host)
	return host != "localhost" && (err != nil || !address.IsLoopback())
}
