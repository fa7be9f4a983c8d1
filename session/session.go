// Package session holds what outlives a connection: a session owns processes
// and watches of files, passes the events of processes on to the connection that
// is attached to it, keeps them while none is, and ends when it has been detached
// too long.
//
// Start at [Sessions], the sessions of a server, and [Session.Start]. The way
// of an event is [Outbox.AppendEvent].
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"execserver/internal/sandbox"
	"execserver/process"
	"execserver/protocol"
)

// Session is one session. All methods may be called concurrently.
//
// Lock order: Sessions.mu, Session.mu, the lock of a process's log.
type Session struct {
	ID        string
	Principal string // the name of who has made it, and can resume it

	opts  Options
	log   *slog.Logger
	owner *process.Owner // of the processes, and of what they leave running

	life *time.Timer // ends the session; nil: nothing does; guarded by Sessions.mu

	mu        sync.Mutex
	entries   map[string]*entry
	closed    []*entry    // of entries, in the order in which they closed
	sweep     *time.Timer // expires the first of closed
	by        Credentials // of who has made or resumed it last
	out       *Outbox     // the owner's, nil while detached
	acks      bool        // the owner acknowledges by itself, also when it comes back
	observers map[*Outbox]bool
	watches   map[string]*watch
	starts    uint64                 // how many there were
	graces    map[string]*time.Timer // end background processes that were asked to end
	ended     bool
}

// entry is one process of a session.
type entry struct {
	id        string
	startID   string           // "": none
	order     uint64           // of the starts
	spawned   chan struct{}    // closed when it is started or has failed
	failure   error            // why it has failed; set before spawned is closed
	proc      *process.Process // nil while it is being spawned
	cancelled bool             // terminated while it was being spawned
	announced bool             // its start has been answered
	wantsAck  bool             // it waits for room, and has not been announced
	closedAt  time.Time        // zero: not closed
}

func newSession(id string, by Credentials, opts Options) *Session {
	return &Session{
		ID: id, Principal: by.Principal, by: by, opts: opts, log: opts.Log.With("session", id),
		owner:   opts.Ownership.NewOwner(),
		entries: make(map[string]*entry),
	}
}

// Start starts a process under a client's id. After the caller has passed the
// success on, it calls Announce; no event of the process goes out before.
func (s *Session) Start(id string, spec process.Spec) error { return s.start(id, "", spec) }

// StartOnce is Start for a client that may have to ask again: with the startID of
// a process that exists it starts nothing, and returns what the first one did.
func (s *Session) StartOnce(id, startID string, spec process.Spec) error {
	return s.start(id, startID, spec)
}

func (s *Session) start(id, startID string, spec process.Spec) error {
	e, repeated, err := s.reserve(id, startID)
	if err != nil {
		return err
	}
	if repeated {
		<-e.spawned
		return e.failure
	}
	defer close(e.spawned)
	e.failure = s.spawn(e, spec)
	return e.failure
}

// spawn starts the process of a reserved entry.
func (s *Session) spawn(e *entry, spec process.Spec) error {
	proc, err := process.Start(spec, &process.Options{
		RetainedBytes: s.opts.RetainedBytes,
		Budget:        s.opts.Budget,
		Notify:        func() { s.notify(e) },
		Blocked:       func() { s.wantAck(e) },
		Exited:        func(exit protocol.ExitRecord) { s.exited(e.id, exit) },
		Owner:         s.owner,
		Name:          e.id,
		DrainTimeout:  s.opts.DrainTimeout,
	})
	if err == nil {
		err = s.adopt(e, proc, spec)
	}
	if err == nil {
		return nil
	}
	if proc != nil {
		proc.Kill()
		proc.Abandon()
		go release(proc)
	}
	s.mu.Lock()
	failure := s.failLocked(e, startError(err))
	s.mu.Unlock()
	if fault, ok := errors.AsType[*process.PanicError](err); ok {
		s.log.Error("starting a process panicked", "process", e.id, "panic", fault.Value, "stack", string(fault.Stack))
	}
	return failure
}

// adopt makes a process that has started one of the session's.
func (s *Session) adopt(e *entry, proc *process.Process, spec process.Spec) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &process.PanicError{Program: spec.Argv[0], Value: v, Stack: debug.Stack()}
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	e.proc = proc
	proc.Log.SetEvict(s.evictLocked())
	s.log.Info("process started", "process", e.id, "pid", proc.Pid(), "argv", commandLine(proc), "tty", spec.TTY)
	if s.ended || e.cancelled {
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s start was cancelled", e.id)
	}
	return nil
}

// commandLine is the beginning of what a process was started with, for the log.
func commandLine(p *process.Process) string {
	about := p.Describe()
	if about.ArgvTruncated {
		return fmt.Sprintf("%q and more", about.Argv)
	}
	return fmt.Sprintf("%q", about.Argv)
}

// exited notes how a process has ended.
func (s *Session) exited(id string, exit protocol.ExitRecord) {
	s.log.Info("process exited", "process", id, "code", exit.ExitCode, "signal", exit.Signal, "endedBy", string(exit.EndedBy))
	if s.opts.Exited != nil {
		s.opts.Exited(s, id, exit)
	}
}

// failLocked forgets a process that could not be started.
func (s *Session) failLocked(e *entry, err *protocol.Error) error {
	delete(s.entries, e.id)
	s.outboxesLocked(func(o *Outbox) {
		delete(o.views, e)
		if o.asks.ProcessEvents {
			o.failures.add(e.id, err)
			o.peer.Wake()
		}
	})
	return err
}

// startError is what the client is told when a process was not started.
func startError(err error) *protocol.Error {
	if own, ok := errors.AsType[*protocol.Error](err); ok {
		return own
	}
	limit, policy, unavailable := (*process.LimitError)(nil), (*sandbox.PolicyError)(nil), (*sandbox.UnavailableError)(nil)
	if errors.As(err, &limit) || errors.As(err, &policy) || errors.As(err, &unavailable) {
		return protocol.Errorf(protocol.CodeInvalidParams, "%s", err)
	}
	return protocol.Errorf(protocol.CodeInternal, "%s", err)
}

// reserve makes the entry of a process that is to be spawned, or returns the one
// whose start this repeats.
func (s *Session) reserve(id, startID string) (e *entry, repeated bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	existing := s.entries[id]
	switch live := len(s.entries) - len(s.closed); {
	case s.ended:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", s.ID)
	case existing != nil && startID != "" && existing.startID == startID:
		return existing, true, nil
	case existing != nil:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest, "process %s already exists", id)
	case live >= s.opts.MaxProcesses:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest,
			"process %s refused: the session has %d live processes, the limit is %d; raise it with --max-processes-per-session", id, live, s.opts.MaxProcesses)
	}
	s.starts++
	e = &entry{id: id, startID: startID, order: s.starts, spawned: make(chan struct{})}
	s.entries[id] = e
	return e, false, nil
}

// Announce lets the events of a started process go out. When a start was repeated
// the first call counts.
func (s *Session) Announce(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil && e.proc != nil && !e.announced {
		e.announced = true
		s.outboxesLocked(func(o *Outbox) {
			if o.asks.ProcessEvents {
				o.viewLocked(e).started = true
			}
		})
		s.readyLocked(e)
		s.noteClosedLocked(e)
		if e.wantsAck && s.out != nil {
			s.out.peer.WantAck()
		}
	}
}

// notify is called by a process after every new event.
func (s *Session) notify(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.announced {
		s.readyLocked(e)
		s.noteClosedLocked(e)
	}
}

// wantAck is called by a process that waits for room. What has not been sent
// cannot be acknowledged, so it has to wait until it is announced.
func (s *Session) wantAck(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !e.announced:
		e.wantsAck = true
	case s.out != nil && !s.out.asks.ProcessAck:
		s.out.peer.WantAck()
	}
}

// readyLocked queues an announced process for every connection.
func (s *Session) readyLocked(e *entry) {
	s.outboxesLocked(func(o *Outbox) { o.readyLocked(e) })
}

// find returns a process that has been spawned.
func (s *Session) find(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	switch {
	case e == nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown process id %s", id)
	case e.proc == nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "process id %s is starting", id)
	}
	return e, nil
}

// Read serves process/read: it waits until there is something to tell after
// the number, at most until ctx ends, and then calls size with about how many
// bytes the answer will have before it collects it.
func (s *Session) Read(ctx context.Context, p protocol.Read, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	s.notePoll(e, value(p.AfterSeq))
	return s.Peek(ctx, p, wait, reserve)
}

// Peek serves the process/read of an observer: it is Read, but keeps nothing from
// being evicted.
func (s *Session) Peek(ctx context.Context, p protocol.Read, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	log := e.proc.Log
	after := value(p.AfterSeq)
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		log.Wait(waitCtx, after)
		cancel()
	}
	if err := reserveRead(log, after, p.MaxBytes, reserve); err != nil {
		return nil, err
	}
	return log.Read(after, p.MaxBytes), nil
}

// reserveRead reserves for what Read has to tell of a log, which may be written
// while this waits.
func reserveRead(log *process.Log, after uint64, maxBytes *uint64, reserve func(bytes int) error) error {
	for size := log.SizeAfter(after, maxBytes); ; {
		if err := reserve(size); err != nil {
			return err
		}
		now := log.SizeAfter(after, maxBytes)
		if now <= 2*size {
			return nil
		}
		size = now
	}
}

// notePoll tells a client that takes its output by polling from one that reads
// once after a resume to fill a gap: the former's unread output is protected. A
// client that acknowledges by itself says what it needs no more in that way.
func (s *Session) notePoll(e *entry, after uint64) {
	s.mu.Lock()
	o := s.out
	polls := o != nil && !o.asks.ProcessAck && s.entries[e.id] == e
	if polls {
		v := o.viewLocked(e)
		v.reads++
		polls = !o.resumed || v.reads > 1
	}
	s.mu.Unlock()
	if polls {
		e.proc.Log.Poll(after)
	}
}

// CanWrite reports whether Write would return at once.
func (s *Session) CanWrite(id string, n int) bool {
	e, err := s.find(id)
	return err != nil || e.proc.CanWrite(n)
}

// Write serves process/write; see process.Process.Write.
func (s *Session) Write(p protocol.Write, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool) {
	s.mu.Lock()
	e := s.entries[p.ProcessID]
	var proc *process.Process
	if e != nil {
		proc = e.proc
	}
	s.mu.Unlock()
	switch {
	case e == nil:
		return protocol.WriteUnknownProcess, false
	case proc == nil:
		return protocol.WriteStarting, false
	}
	return proc.Write(p.Chunk, p.WriteID, cancel, wait)
}

// Terminate ends a process and reports whether it was running.
func (s *Session) Terminate(id string) (running bool) {
	if s.inBackground(id) {
		return s.owner.SignalBackground(id, process.SignalNumber("SIGKILL")) == nil
	}
	return s.terminate(id, (*process.Process).Terminate)
}

// TerminateGracefully asks a process to end, ends it after timeout, and reports at
// once whether it was running.
func (s *Session) TerminateGracefully(id string, timeout time.Duration) (running bool) {
	if s.inBackground(id) {
		return s.endBackground(id, timeout)
	}
	return s.terminate(id, func(p *process.Process) bool { return p.TerminateGracefully(timeout) })
}

// terminate ends a process that is started, and cancels the start of one that is
// not yet.
func (s *Session) terminate(id string, end func(*process.Process) bool) (running bool) {
	s.mu.Lock()
	e := s.entries[id]
	if e != nil && e.proc == nil {
		e.cancelled = true
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	return e != nil && end(e.proc)
}

// end ends the session for its clients: its events go nowhere any more. What it
// returns kills everything that the session owns, which takes its time when that is
// much; it is nil when the session has ended before.
func (s *Session) end(cause protocol.EndedBy, reason string) (kill func()) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	s.ended = true
	s.out = nil
	if s.sweep != nil {
		s.sweep.Stop()
	}
	s.stopGracesLocked()
	procs := s.processesLocked()
	observers := s.observers
	s.observers = nil
	s.mu.Unlock()
	for o := range observers {
		o.peer.Left("the session has ended")
	}
	s.log.Info("session ended", "reason", reason, "processes", len(procs))
	return func() {
		s.owner.End(cause)
		for _, p := range procs {
			p.Abandon()
		}
	}
}

func (s *Session) processesLocked() []*process.Process {
	procs := make([]*process.Process, 0, len(s.entries))
	for _, e := range s.entries {
		if e.proc != nil {
			procs = append(procs, e.proc)
		}
	}
	return procs
}

// wait waits until everything that an ended session has owned is gone, and gives
// the memory of its processes back. It also ends the watches, which may take its
// time.
func (s *Session) wait() {
	s.owner.Wait()
	s.mu.Lock()
	procs := s.processesLocked()
	s.mu.Unlock()
	for _, p := range procs {
		release(p)
	}
	s.unwatchAll()
}

// release gives the memory of a killed process back once it is closed, and waits
// until nothing of it is read any more.
func release(p *process.Process) {
	<-p.Closed()
	p.Release()
	<-p.Over()
}

func value(p *uint64) uint64 {
	if p == nil {
		return 0
	}
	return *p
}
