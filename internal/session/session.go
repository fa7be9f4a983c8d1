// Package session holds what outlives a connection. A session owns processes and watches
// of files, passes the events of processes to its connection, keeps them while it has
// none, and ends when it has been detached too long.
//
// Start at [Sessions], the sessions of a server, and [Session.Start].
// [Outbox.AppendEvent] sends an event.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/quota"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// Session is one session. All methods may be called concurrently.
//
// Lock order: Sessions.mu, Session.mu, the lock of a process's log.
type Session struct {
	ID        string
	Principal string // the principal that created it, and can resume it

	quotaKey string         // under which package quota counts it
	budget   *output.Budget // of its principal
	quotas   *quotas
	counts   *counts // of the Sessions
	opts     Options
	log      *slog.Logger
	owner    *ownership.Owner // of the processes and their background processes

	life     *time.Timer   // ends the session; nil if nothing does; guarded by Sessions.mu
	lifeEnds time.Time     // when it does; guarded by Sessions.mu
	name     string        // "" for none; guarded by Sessions.mu
	keep     time.Duration // its lease; 0 for none; guarded by Sessions.mu and mu: either suffices to read it

	created time.Time
	order   uint64          // number of the session
	context context.Context // ends with the session
	cancel  context.CancelCauseFunc

	mu             sync.Mutex
	detachedOutput *protocol.DetachedOutput // of its lease; nil: as Options and acks say

	client    string // the name of the client that owns it, or owned it last
	entries   map[string]*entry
	closed    []*entry    // of entries, in the order in which they closed
	expiry    *time.Timer // expires the first of closed
	by        Credentials // of the client that created or last resumed it
	out       *Outbox     // the owner's, nil while detached
	acks      bool        // the owner acknowledges by itself, also when it comes back
	observers map[*Outbox]bool
	watches   map[string]*watch
	starts    uint64                 // number of starts
	graces    map[string]*time.Timer // kill background processes that were asked to end
	ended     bool
}

// entry is one process of a session.
type entry struct {
	session   *Session
	id        string
	startID   string           // "" if none
	order     uint64           // number of the start
	spawned   chan struct{}    // closed when it has started or failed
	failure   error            // why it failed; set before spawned is closed
	proc      *process.Process // nil while it is being spawned
	picture   picture          // its screen
	cancelled bool             // terminated while it was being spawned
	announced bool             // its start has been answered
	wantsAck  bool             // it waits for room, and has not been announced
	closedAt  time.Time        // zero if not closed
	counted   bool             // among the live processes of its principal
	recording Recording        // nil if it is not recorded; set before proc
}

func newSession(id string, by Credentials, opts Options, quotas *quotas) *Session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Session{
		context: ctx, cancel: cancel,
		ID: id, Principal: by.Principal, by: by, opts: opts, log: opts.Log.With("sessionId", id), created: time.Now(),
		quotaKey: by.QuotaKey, budget: opts.Budget.Of(by.QuotaKey), quotas: quotas,
		owner:   opts.Ownership.NewOwner(),
		entries: make(map[string]*entry),
	}
}

// Start starts a process under a client's id. After the caller has sent the reply, it
// must call Announce; the session sends no event of the process before. A client that
// may have to ask again gives a startID: if a process with the startID exists, Start
// starts nothing and returns the result of the first start. The search for the program ends
// with ctx, which is that of a connection, or with the session if there is a startID: the
// client may ask again over another connection.
func (s *Session) Start(ctx context.Context, id, startID string, spec process.Spec) error {
	e, repeated, err := s.reserveID(id, startID)
	if err != nil {
		return err
	}
	if repeated {
		<-e.spawned
		return e.failure
	}
	defer close(e.spawned)
	if startID != "" {
		ctx = s.context
	}
	e.failure = s.startProcess(ctx, e, spec)
	return e.failure
}

// startProcess starts the process of a reserved entry.
func (s *Session) startProcess(ctx context.Context, e *entry, spec process.Spec) error {
	proc, err := process.Start(spec, &process.Options{
		Context:       ctx,
		RetainedBytes: s.opts.RetainedBytes,
		Budget:        s.budget,
		Listener:      e,
		Input:         process.InputQuota{Quota: s.quotas.input, Principal: s.quotaKey},
		Owner:         s.owner,
		Name:          e.id,
		DrainTimeout:  s.opts.DrainTimeout,
	})
	if err == nil {
		s.counts.started.Add(1)
		s.record(e, proc, spec)
		err = s.adopt(e, proc, spec)
	}
	if err == nil {
		return nil
	}
	if proc != nil {
		proc.Kill()
		proc.Abandon()
		go release(proc) // ends when the process has
	}
	s.mu.Lock()
	failure := s.failLocked(e, startError(err))
	s.mu.Unlock()
	if fault, ok := errors.AsType[*process.PanicError](err); ok {
		s.log.Error("starting a process panicked", "processId", e.id, "panic", fault.Value, "stack", string(fault.Stack))
	}
	return failure
}

// adopt adds a started process to the session.
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
	s.log.Info("process started", "processId", e.id, "pid", proc.Pid(), "argv", commandLine(proc), "tty", spec.TTY)
	if s.ended || e.cancelled {
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s start was cancelled", e.id)
	}
	return nil
}

// commandLine returns the beginning of a process's arguments, for the log.
func commandLine(p *process.Process) string {
	about := p.Describe()
	if about.ArgvTruncated {
		return fmt.Sprintf("%q and more", about.Argv)
	}
	return fmt.Sprintf("%q", about.Argv)
}

// Exited implements process.Listener.
func (e *entry) Exited(exit protocol.ExitRecord) {
	s := e.session
	s.log.Info("process exited", "processId", e.id, "exitCode", exit.ExitCode, "signal", exit.Signal, "endedBy", string(exit.EndedBy))
	if s.opts.Exited != nil {
		s.opts.Exited(s, e.id, exit)
	}
}

// failLocked forgets a process that could not be started.
func (s *Session) failLocked(e *entry, err *protocol.Error) error {
	delete(s.entries, e.id)
	s.giveProcessLocked(e)
	s.outboxesLocked(func(o *Outbox) {
		o.forgetLocked(e)
		if o.asks.ProcessEvents {
			o.failures.add(e.id, err)
			o.writer.Wake()
		}
	})
	return err
}

// startError returns the client's error for a process that did not start.
func startError(err error) *protocol.Error {
	if own, ok := errors.AsType[*protocol.Error](err); ok {
		return own
	}
	limit, policy, unavailable := (*ownership.LimitError)(nil), (*sandbox.PolicyError)(nil), (*sandbox.UnavailableError)(nil)
	if errors.As(err, &limit) || errors.As(err, &policy) || errors.As(err, &unavailable) {
		return protocol.Errorf(protocol.CodeInvalidParams, "%s", err)
	}
	return protocol.Errorf(protocol.CodeInternal, "%s", err)
}

// reserveID adds the entry of a process to be spawned, or returns the entry whose start
// this repeats.
func (s *Session) reserveID(id, startID string) (e *entry, repeated bool, err error) {
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
	case s.out != nil && len(s.out.queue) >= s.maxUnsent():
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest,
			"process %s refused: the connection has not taken the events of %d processes, the limit is %d", id, len(s.out.queue), s.maxUnsent())
	case live >= s.opts.MaxProcesses:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest,
			"process %s refused: the session has %d live processes, the limit is %d", id, live, s.opts.MaxProcesses)
	}
	e = &entry{session: s, id: id, startID: startID, order: s.starts + 1, spawned: make(chan struct{})}
	if err := s.takeProcessLocked(e); err != nil {
		return nil, false, err
	}
	s.starts++
	s.entries[id] = e
	return e, false, nil
}

// Announce lets the session send the events of a started process. Further calls have no
// effect.
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
		e.queueLocked()
		s.noteClosedLocked(e)
		if e.wantsAck && s.out != nil {
			s.out.writer.WantAck()
		}
	}
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

// Read serves process/read. It waits for events after the number, or until ctx ends. Then
// it calls reserve with the approximate size of the answer before it collects it.
func (s *Session) Read(ctx context.Context, p protocol.ReadParams, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	s.notePoll(e, value(p.AfterSeq))
	return s.read(ctx, e, p, wait, 0, reserve)
}

// Peek serves the process/read of an observer. It is like Read, but does not prevent
// eviction.
func (s *Session) Peek(ctx context.Context, p protocol.ReadParams, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	return s.read(ctx, e, p, wait, peekDelay, reserve)
}

// read waits for events, and for delay more if there were none before.
func (s *Session) read(ctx context.Context, e *entry, p protocol.ReadParams, wait, delay time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	log := e.proc.Log
	after := value(p.AfterSeq)
	if wait > 0 && !log.Ready(after) {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		log.Wait(waitCtx, after)
		cancel()
		if delay > 0 && log.Ready(after) {
			sleep(ctx, delay)
		}
	}
	if err := reserveRead(log, after, p.MaxBytes, reserve); err != nil {
		return nil, err
	}
	result := log.Read(after, p.MaxBytes)
	return result, s.stillKnown(e)
}

// stillKnown returns an error if the process has been forgotten, and its output with it,
// perhaps while a request waited for room for its answer.
func (s *Session) stillKnown(e *entry) error {
	switch known, err := s.find(e.id); {
	case err != nil:
		return err
	case known != e: // another one has its id now
		return protocol.Errorf(protocol.CodeInvalidRequest, "unknown process id %s", e.id)
	}
	return nil
}

// peekDelay is how long a watcher that has waited for output waits on, so that the owner is
// served first: the owner's keys have their echoes as soon as without a watcher.
const peekDelay = 5 * time.Millisecond

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// reserveRead reserves room for the answer of Read. Output may arrive while it waits.
func reserveRead(log *output.Log, after uint64, maxBytes *uint64, reserve func(bytes int) error) error {
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

// notePoll distinguishes a client that polls from one that reads once after a resume to
// fill a gap: unread output is protected from eviction for the former. A client that
// acknowledges by itself needs no such protection.
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

// Write serves process/write; see process.Process.Write.
func (s *Session) Write(p protocol.WriteParams, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool, err error) {
	s.mu.Lock()
	e := s.entries[p.ProcessID]
	var proc *process.Process
	if e != nil {
		proc = e.proc
	}
	s.mu.Unlock()
	switch {
	case e == nil:
		return protocol.WriteUnknownProcess, false, nil
	case proc == nil:
		return protocol.WriteStarting, false, nil
	}
	status, cancelled, err = proc.Write(p.Chunk, p.WriteID, cancel, wait)
	if refusal, ok := errors.AsType[*quota.Error](err); ok {
		err = protocol.Errorf(protocol.CodeInvalidRequest, "write to process %s refused: %s", p.ProcessID,
			refusal.Of("has", "bytes that processes have not read from their stdin"))
	}
	return status, cancelled, err
}

// Terminate kills a process and reports whether it was running.
func (s *Session) Terminate(id string) (running bool) {
	if s.inBackground(id) {
		return s.owner.SignalBackground(id, process.SignalNumber("SIGKILL")) == nil
	}
	return s.terminate(id, (*process.Process).Terminate)
}

// TerminateGracefully asks a process to end, kills it after timeout, and reports at once
// whether it was running.
func (s *Session) TerminateGracefully(id string, timeout time.Duration) (running bool) {
	if s.inBackground(id) {
		return s.endBackground(id, timeout)
	}
	return s.terminate(id, func(p *process.Process) bool { return p.TerminateGracefully(timeout) })
}

// terminate ends a started process, and cancels the start of one that has not started
// yet.
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

// end ends the session for its clients: it sends no more events. The returned function
// kills everything that the session owns, which may take time. It is nil if the session
// had ended before.
func (s *Session) end(cause protocol.EndedBy, reason string) (kill func()) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	s.ended = true
	s.cancel(errors.New("the session has ended"))
	s.out = nil
	if s.expiry != nil {
		s.expiry.Stop()
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

// wait waits until everything that an ended session owned is gone, and releases the
// memory of its processes. It also ends the watches, which may take time.
func (s *Session) wait() {
	s.owner.Wait()
	entries := s.started()
	awaitRecordings(entries)
	for _, e := range entries {
		release(e.proc)
	}
	s.budget.Leave()
	s.mu.Lock()
	entries = entries[:0]
	for _, e := range s.entries {
		s.giveProcessLocked(e)
		entries = append(entries, e)
	}
	s.mu.Unlock()
	for _, e := range entries {
		e.picture.drop()
	}
	s.unwatchAll()
}

// release waits until a killed process is closed and nothing of it is read any more, and
// releases its memory.
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
