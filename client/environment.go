package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strconv"
	"sync"
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

// Options configure an Environment. Nil and the zero value mean the defaults. The
// constructors copy the Options, which can be used again.
type Options struct {
	// Name is the client's name, which the server records. The default is
	// "exec-server-client".
	Name string
	Log  *slog.Logger // nil discards

	// Token is the bearer token for the upgrade of a WebSocket. TokenFile names a file
	// with the token instead, which the client reads for every connection. At most one of
	// them may be set (PROTOCOL.md, "Authentication").
	Token     string
	TokenFile string
	TLS       *tls.Config // for wss; nil uses the system's roots

	// ServerUser is the name or the number of a user who may have the token, besides the
	// user of this program and root: before the client sends a token in clear to this
	// machine, it asks the kernel who has accepted the connection (Linux; docs/security.md).
	ServerUser string

	// AllowConfinedPeers lets confined processes of this machine connect to what
	// Environment.Listen listens at.
	AllowConfinedPeers bool

	// ConnectTimeout bounds one attempt to connect, and InitializeTimeout the handshake
	// after it. If the server is copied to its machine first, as by exec-server connect,
	// that time begins again whenever more of it has arrived.
	ConnectTimeout    time.Duration
	InitializeTimeout time.Duration

	// RecoveryTimeout bounds the attempts to replace a broken connection, all together, and
	// those to replace connections that end soon and bring nothing. If it is negative, the
	// client makes none. It should be shorter than the time for which
	// the server keeps a detached session (PROTOCOL.md, "Limits"); RecoverWhileKept makes
	// it as long.
	RecoveryTimeout time.Duration
	// OnState is called when the state of the connection has changed, in order, and never
	// concurrently. It may block, and may call Close: nothing waits for it. If it has
	// blocked for very many changes, some that are over are left out. After Close and
	// Detach have begun, no further state is told.
	OnState func(State)
	// Session is the id of a session that an earlier program left at the server
	// (Environment.Session), which the Environment resumes, with its processes: see
	// Environment.Attach. Observe is the id of a session that the Environment observes
	// instead, whoever owns it: see Environment.TakeOver. At most one of them may be set.
	// If there is no such session, the error matches ErrUnknownSession, and if a live
	// connection has the session to resume, protocol.ErrSessionAttached. Only a server that
	// listens, or that serves several connections, has sessions that last.
	Session string
	Observe string
	// NoSession makes an Environment without a session, which leaves nothing at the server.
	// Only Info, Sessions, AllProcesses, SignalIn, TerminateIn and EndSession work; what else
	// needs the server fails with ErrNoSession. The error of Dial is an *UnsupportedError if
	// the server lacks the capability sessionList.
	NoSession bool

	// Compression says when output, input and files are compressed on the way, where that
	// makes them smaller.
	Compression Compression

	// FailFast makes calls during recovery fail with ErrRecovering instead of waiting.
	FailFast bool

	// ReplayEvents and ReplayBytes bound the events of each process, and the bytes of
	// their output, that the client keeps for late or slow readers of Process.Events.
	ReplayEvents int
	ReplayBytes  int

	// The following are for tests.
	pingInterval time.Duration // 0: the default of package rpc
	cleanupTime  time.Duration // bounds what a copy does after its end; 0: two seconds
}

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

// Environment is a place with commands and files, at the other end of a connection to a
// server. Dial, Connect, Launch and New make one. The caller must call Close when it has
// finished with the Environment. Its methods may be called concurrently.
type Environment struct {
	opts Options
	link *link // the connection to the server
	acks bool  // the server supports acknowledgements

	ctx    context.Context // ends with the Environment
	cancel context.CancelCauseFunc
	done   chan struct{}
	wg     sync.WaitGroup // goroutines started by run
	intake intake
	states states

	inherited bool   // the session is older than the Environment
	prefix    string // of the ids of its own processes

	mu     sync.Mutex
	procs  map[string]*Process // processes that have not closed
	lastID uint64
	read   map[string]bool // ids of closed processes of Attach that were read to their end
	err    error           // why the Environment ended
	once   sync.Once
}

func newEnvironment(opts Options) *Environment {
	e := &Environment{opts: opts, done: make(chan struct{}), procs: make(map[string]*Process)}
	e.states.tell = opts.OnState
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e
}

// Info returns a description of the machine, as the server gave it when the Environment
// was made. All callers share it, and must not change it.
func (e *Environment) Info() *Info { return e.link.machine }

// has reports whether the server has a capability.
func (e *Environment) has(capability string) bool { return e.link.machine.Capabilities[capability] }

// Done returns a channel that is closed when the Environment has ended, because it was
// closed or its connection is lost for good. Err then says why.
func (e *Environment) Done() <-chan struct{} { return e.done }

// Err returns nil while the Environment works, then ErrClosed or a *DisconnectedError.
func (e *Environment) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// terminateTimeout bounds the wait for the termination of a process that nobody needs.
const terminateTimeout = 2 * time.Second

// Close ends all processes of the session that have not closed, with their descendants,
// and then the connection. It unblocks all calls, which fail with ErrClosed, and returns
// when the Environment's goroutines have ended. If the server does not answer, Close gives
// up after a few seconds, and the end of the session ends the processes. Close returns nil,
// and may be called again.
//
// The Close of an observer, and that of an owner whose session has a lease
// ([Environment.Keep]), only end the connection. To leave the processes running in any
// case, call [Environment.Detach].
func (e *Environment) Close() error {
	e.once.Do(func() {
		e.states.end()
		procs := e.end(ErrClosed)
		if !e.Observing() && e.link.lease() == 0 {
			e.terminate(procs)
		}
		e.shut()
	})
	return nil
}

// terminate ends the processes, and those that an earlier program left in the session.
func (e *Environment) terminate(procs []*Process) {
	ctx, cancel := context.WithTimeout(context.Background(), terminateTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range procs {
		wg.Go(func() {
			p.forsake()
			// If it fails, the end of the session kills the process.
			_ = p.Terminate(ctx, 0)
			select {
			case <-p.closedCh:
			case <-ctx.Done():
			}
		})
	}
	if e.inherited {
		e.terminateOthers(ctx, procs)
	}
	wg.Wait()
}

// shut ends the connection and everything that still waits.
func (e *Environment) shut() {
	e.cancel(ErrClosed)
	e.link.shut()
	e.fail(ErrClosed)
	e.wg.Wait()
}

// end records why the Environment ends, and returns its live processes.
func (e *Environment) end(err error) []*Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
		close(e.done)
		e.intake.open()
	}
	procs := make([]*Process, 0, len(e.procs))
	for _, p := range e.procs {
		procs = append(procs, p)
	}
	return procs
}

// fail ends the Environment, and reports one failure to each of its processes.
func (e *Environment) fail(err error) {
	for _, p := range e.end(err) {
		p.fail(err)
	}
}

// run runs f on a goroutine that Close waits for. It returns false if the Environment has
// ended.
func (e *Environment) run(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return false
	}
	e.wg.Go(f)
	return true
}

// process returns a process that has not closed, or nil.
func (e *Environment) process(id string) *Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.procs[id]
}

// live returns the processes that have not closed.
func (e *Environment) live() []*Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	procs := make([]*Process, 0, len(e.procs))
	for _, p := range e.procs {
		procs = append(procs, p)
	}
	return procs
}

// register adds a process under its id. The process receives its events from now on.
func (e *Environment) register(p *Process) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	e.lastID++
	p.ID = e.prefix + strconv.FormatUint(e.lastID, 10)
	e.procs[p.ID] = p
	return nil
}

func (e *Environment) forget(p *Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.procs, p.ID)
}
