package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"execserver/protocol"
)

// Defaults of Options.
const (
	DefaultConnectTimeout    = 10 * time.Second
	DefaultInitializeTimeout = 10 * time.Second
	DefaultRecoveryTimeout   = 45 * time.Second
	DefaultReplayEvents      = 256
	DefaultReplayBytes       = 1 << 20
)

// Options of an Environment. Nil and the zero value mean the defaults.
type Options struct {
	// Name is what the server is told as the client's name.
	Name string
	Log  *slog.Logger // nil: discard

	// Token is sent as bearer token with the upgrade of a WebSocket; TokenFile
	// names a file with it instead, which is read at every connection.
	Token     string
	TokenFile string
	TLS       *tls.Config // of wss; nil: the system's roots

	// ConnectTimeout bounds one attempt to connect, InitializeTimeout the
	// handshake after it.
	ConnectTimeout    time.Duration
	InitializeTimeout time.Duration

	// RecoveryTimeout bounds the attempts to make a broken connection again;
	// negative: none is made. It should be below the time that the server
	// keeps a session.
	RecoveryTimeout time.Duration
	// FailFast makes calls during that time fail with ErrRecovering instead of
	// waiting.
	FailFast bool

	// ReplayEvents and ReplayBytes bound what is held of each process for
	// subscribers of its events that come late or lag.
	ReplayEvents int
	ReplayBytes  int

	pingInterval time.Duration // of tests; 0: the default of package rpc
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

// Capabilities that servers announce (PROTOCOL.md, "Environment"), as
// Info.Capabilities has them.
const (
	capCloseStdin        = "processCloseStdin"
	capDrain             = "processDrain"
	capLimits            = "processLimits"
	capResize            = "processResize"
	capSignals           = "processSignals"
	capTerminateGraceful = "processTerminateGraceful"
	capAck               = "processAck"
	capStartID           = "startId"
	capFileWriting       = "fileWriteStreaming"
)

// backend is what an Environment needs of its machine. A link reaches it over a
// connection, a host is this process itself. Errors of the server come as
// explain makes them.
type backend interface {
	files
	info() *Info

	// start starts a process, whose events go to its insert from then on.
	// When ctx ends first, the backend sees to it that it does not live on.
	start(ctx context.Context, p *Process, s *startRequest) error
	read(ctx context.Context, id string, after uint64, maxBytes uint64) (*readResult, error)
	write(ctx context.Context, id string, data []byte, writeID string) (protocol.WriteStatus, error)
	closeStdin(ctx context.Context, id string) error
	resize(ctx context.Context, id string, size Size) error
	signal(ctx context.Context, s protocol.Signal) error
	terminate(ctx context.Context, id string, grace time.Duration) error
	ack(id string, seq uint64) // must not block
	roundTrip(*http.Request) (*http.Response, error)

	// shut lets go of the machine and waits until everything that the backend
	// started is gone.
	shut()
}

// Environment is a place where commands run and files lie. All methods may be
// called concurrently.
type Environment struct {
	opts Options
	back backend
	acks bool // the server takes acknowledgements

	ctx    context.Context // ends when the Environment does
	cancel context.CancelCauseFunc
	done   chan struct{}
	wg     sync.WaitGroup // everything started by run
	intake intake

	mu     sync.Mutex
	procs  map[string]*Process // that have not closed
	lastID uint64
	err    error // why it has ended
	once   sync.Once
}

func newEnvironment(opts Options) *Environment {
	e := &Environment{opts: opts, done: make(chan struct{}), procs: make(map[string]*Process)}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e
}

// Info describes the machine.
func (e *Environment) Info() *Info { return e.back.info() }

// has reports whether the server announces a capability.
func (e *Environment) has(capability string) bool { return e.back.info().Capabilities[capability] }

// Done is closed when the Environment has ended: it was closed, or its
// connection is gone for good. Err then says why.
func (e *Environment) Done() <-chan struct{} { return e.done }

// Err returns nil as long as the Environment is of use, then ErrClosed or a
// *DisconnectedError.
func (e *Environment) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// terminateTimeout bounds how long an Environment waits for a process that it
// has no use for to be terminated.
const terminateTimeout = 2 * time.Second

// Close ends all processes that were started here and lets go of the machine. It
// returns when nothing of the Environment is left in this process; it may be
// called again.
func (e *Environment) Close() error {
	e.once.Do(func() {
		procs := e.end(ErrClosed)
		ctx, cancel := context.WithTimeout(context.Background(), terminateTimeout)
		var wg sync.WaitGroup
		for _, p := range procs {
			wg.Go(func() {
				// Whether it worked is told by the process being closed.
				_ = p.Terminate(ctx, 0)
				select {
				case <-p.closedCh:
				case <-ctx.Done():
				}
			})
		}
		wg.Wait()
		cancel()
		e.cancel(ErrClosed)
		e.back.shut()
		e.fail(ErrClosed)
		e.wg.Wait()
	})
	return nil
}

// end notes why the Environment ends, and returns what lives.
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

// fail ends the Environment, and everything that lives in it with one failure
// each.
func (e *Environment) fail(err error) {
	for _, p := range e.end(err) {
		p.fail(err)
	}
}

// run runs f on a goroutine that Close waits for. It reports false when the
// Environment has ended.
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

// register gives a process its id; it gets its events from now on.
func (e *Environment) register(p *Process) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	e.lastID++
	p.ID = strconv.FormatUint(e.lastID, 10)
	e.procs[p.ID] = p
	return nil
}

func (e *Environment) forget(p *Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.procs, p.ID)
}
