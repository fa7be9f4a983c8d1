package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// Environment is a client of one machine, over a connection to its server. Dial, Connect, Launch and
// New return one. The caller must call Close or Detach. Its methods may be called concurrently.
type Environment struct {
	opts Options

	conns  *connManager // the connection to the server
	files  remoteFiles
	remote remoteProcesses

	ctx      context.Context // of the client's own requests; ends with the Environment
	cancel   context.CancelCauseFunc
	done     chan struct{}
	wg       sync.WaitGroup // goroutines started by run
	received receiveLimit
	bodies   streams // of HTTP responses
	watches  watches
	tunnels  tunnels // forwarded connections
	prefix   string  // of the ids of its own processes

	mu     sync.Mutex
	procs  map[string]*Process // processes that have not closed, or have unread events
	lastID uint64
	read   map[string]bool // ids of closed processes of Attach that were read to their end
	err    error           // why the Environment ended
	once   sync.Once
}

func newEnvironment(opts Options) *Environment {
	e := &Environment{opts: opts, done: make(chan struct{}), procs: make(map[string]*Process)}
	e.ctx, e.cancel = context.WithCancelCause(withoutFailFast(context.Background()))
	return e
}

// open connects the Environment.
func (e *Environment) open(ctx context.Context, m *connManager) (*Environment, error) {
	m.user, m.opts, m.ctx, m.states.report = e, &e.opts, e.ctx, e.opts.OnState
	e.conns, e.files, e.remote = m, remoteFiles{conns: m}, remoteProcesses{m}
	if err := m.inherit(&e.opts); err != nil {
		return nil, err
	}
	if m.inherited {
		e.prefix = uniquePrefix()
	}
	if err := m.open(ctx); err != nil {
		e.cancel(err)
		return nil, err
	}
	return e, nil
}

// Info returns a description of the machine, which the server sent when it was first connected. All
// callers share the Info and must not change it.
func (e *Environment) Info() *Info { return e.conns.machine }

// has reports whether the server has a capability.
func (e *Environment) has(capability string) bool { return e.conns.has(capability) }

// Done returns a channel that is closed when the Environment is closed or has failed. Err then
// returns the reason.
func (e *Environment) Done() <-chan struct{} { return e.done }

// Err returns nil while the Environment works or reconnects, and afterwards ErrClosed or a
// *DisconnectedError.
func (e *Environment) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Command returns a Cmd to run the named program with the arguments. It does not start the program.
// If ctx is done before the process exits, the client kills the process and its descendants; see
// Cmd.Cancel.
//
// Use ctx when the caller no longer needs the command: this works with every server, but only while
// the client can reach it. Use Limits.Timeout to limit how long the command runs: the server
// enforces it, even while the connection is broken.
func (e *Environment) Command(ctx context.Context, name string, args ...string) *Cmd {
	if ctx == nil {
		panic("client: nil Context")
	}
	return &Cmd{
		Path: name, Args: append([]string{name}, args...),
		env: e, ctx: ctx, p: newProcess(e), cancelled: make(chan error, 1), began: make(chan struct{}),
		delayed: make(chan struct{}), lost: make(chan struct{}), over: make(chan struct{}),
	}
}

// FS returns a file system rooted at the directory dir, which need not exist. dir is a native path
// of the machine. A relative path is relative to Info.Dir, and "" means Info.Dir.
func (e *Environment) FS(dir string) *FS {
	return &FS{env: e, ctx: context.Background(), dir: e.Info().resolve(dir)}
}

// Transport returns an http.RoundTripper that sends requests from the machine, with its network and
// its name resolution:
//
//	httpClient := &http.Client{Transport: env.Transport()}
//
// There is no flow control for a response: reading its body fails if 16 MiB of it are waiting for a
// slow reader. The RoundTripper reads the whole body of a request into memory first. If the
// connection breaks, the request and its body fail with an *InterruptedError.
//
// Cancelling the context of a request aborts the request and the body of its response; closing the
// body aborts the body. The server then stops as well if it has the capability httpRequestCancel
// (EXTENSIONS.md). The RoundTripper may be used concurrently.
func (e *Environment) Transport() http.RoundTripper { return roundTripper{e} }

// terminateTimeout is how long the client tries to terminate a process that is no longer needed.
const terminateTimeout = 2 * time.Second

// Close kills the processes of the session and their descendants, and closes the connection. If the
// Environment only observes the session, or the session has a lease ([Environment.Keep]), Close
// kills nothing. To leave the processes running in any case, call [Environment.Detach].
//
// Close unblocks all calls, which fail with ErrClosed, and returns when the Environment's goroutines
// have ended. If the server does not respond, Close gives up after a few seconds, and the server
// kills the processes when the session expires. Close returns nil, and may be called again.
func (e *Environment) Close() error {
	e.once.Do(func() {
		e.conns.states.end()
		procs := e.end(ErrClosed)
		if !e.Observing() && e.conns.lease() == 0 {
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
			p.dropReaders()
			// If it fails, the end of the session kills the process.
			_ = p.Terminate(ctx, 0)
			select {
			case <-p.closedCh:
			case <-ctx.Done():
			}
		})
	}
	if e.conns.inherited {
		e.terminateOthers(ctx, procs)
	}
	wg.Wait()
}

// shut ends the connection and everything that still waits.
func (e *Environment) shut() {
	e.cancel(ErrClosed)
	e.conns.shut()
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
		e.received.lift()
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

// The methods of connUser.

func (e *Environment) opened(conn *rpc.Conn) { e.tunnels.add(conn) }

func (e *Environment) ended(conn *rpc.Conn) { e.tunnels.remove(conn) }

// resume acknowledges the events of every process.
func (e *Environment) resume(conn *rpc.Conn) error {
	for _, p := range e.live() {
		if seq := p.acknowledged(); seq > 0 {
			if err := conn.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: p.ID, Seq: seq}); err != nil {
				return err
			}
		}
	}
	return nil
}

// notification ignores unknown notifications.
func (e *Environment) notification(conn *rpc.Conn, method string, params json.RawMessage, data []byte) (useful bool, err error) {
	id, event, ok, err := decodeEvent(method, params, data)
	switch {
	case err != nil:
		return false, fmt.Errorf("exec-server notification handling failed: %s: %w", method, err)
	case ok:
		process := e.process(id)
		if process == nil {
			e.disclaim(conn, id, event.Seq)
			return false, nil
		}
		process.receive(event)
		return true, nil
	}
	switch method {
	case protocol.NotificationHTTPBodyDelta:
		return false, e.bodies.delta(params)
	case protocol.NotificationChanged:
		return false, e.watches.changed(conn, params)
	}
	return false, e.tunnels.notify(conn, method, params, data)
}

// disclaim acknowledges an event of a process that this client has given up: it has acknowledged
// its end, or abandoned its start. The server would otherwise keep its
// events and send them again after every resume. Those of a process that another program
// started are kept for Attach.
func (e *Environment) disclaim(conn *rpc.Conn, id string, seq uint64) {
	if !e.foreign(id) && e.conns.acks {
		_ = conn.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: id, Seq: seq}) // otherwise after the next resume
	}
}

func (e *Environment) mayRead(calling bool) (space <-chan struct{}) { return e.received.wait(calling) }

func (e *Environment) lost(err error) { e.bodies.fail(err) }

// recovered continues what the lost connection has interrupted.
func (e *Environment) recovered() {
	for _, p := range e.live() {
		p.ackAgain()
		p.fill()
		p.resend()
	}
}

// needsSession reports whether the server may have a process.
func (e *Environment) needsSession() bool {
	return slices.ContainsFunc(e.live(), func(p *Process) bool { return p.asked.Load() })
}
