package session

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/quota"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// sessionProcess is one process of a session.
type sessionProcess struct {
	session   *Session
	id        string
	startID   string           // "" if none
	order     uint64           // number of the start
	spawned   chan struct{}    // closed when it has started or failed
	failure   error            // why it failed; set before spawned is closed
	proc      *process.Process // nil while it is being spawned
	terminal  terminalState
	cancelled bool      // terminated while it was being spawned
	announced bool      // its start has been answered
	wantsAck  bool      // it waits for an acknowledgement, and has not been announced
	closedAt  time.Time // zero if not closed
	counted   bool      // among the live processes of its principal
	recording Recording // nil if it is not recorded; set before proc
}

// Start starts a process under a client's id. After the caller has sent the reply, it
// must call Announce; the session sends no event of the process before. A client that
// may have to ask again gives a startID: if a process with the startID exists, Start
// starts nothing and returns the result of the first start. The search for the program ends
// with ctx, which is that of a connection, or with the session if there is a startID: the
// client may ask again over another connection. The wait for the first start ends with ctx.
func (s *Session) Start(ctx context.Context, id, startID string, spec process.Spec) error {
	sp, repeated, err := s.reserveID(id, startID)
	if err != nil {
		return err
	}
	if repeated {
		select {
		case <-sp.spawned:
			return sp.failure
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer close(sp.spawned)
	if startID != "" {
		ctx = s.context
	}
	sp.failure = sp.start(ctx, spec)
	return sp.failure
}

// reserveID adds the entry of a process to be spawned, or returns the entry whose start
// this repeats.
func (s *Session) reserveID(id, startID string) (sp *sessionProcess, repeated bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	existing := s.processes[id]
	switch live := len(s.processes) - len(s.closed); {
	case s.ended:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", s.ID)
	case existing != nil && startID != "" && existing.startID == startID:
		return existing, true, nil
	case existing != nil:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest, "process %s already exists", id)
	case s.owner != nil && len(s.owner.queue) >= s.maxUnsent():
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest,
			"process %s refused: the connection has not taken the events of %d processes, the limit is %d", id, len(s.owner.queue), s.maxUnsent())
	case live >= s.opts.MaxProcesses:
		return nil, false, protocol.Errorf(protocol.CodeInvalidRequest,
			"process %s refused: the session has %d live processes, the limit is %d", id, live, s.opts.MaxProcesses)
	}
	sp = &sessionProcess{session: s, id: id, startID: startID, order: s.starts + 1, spawned: make(chan struct{})}
	if err := sp.acquireLocked(); err != nil {
		return nil, false, err
	}
	s.starts++
	s.processes[id] = sp
	return sp, false, nil
}

// start starts the process of a reserved entry.
func (sp *sessionProcess) start(ctx context.Context, spec process.Spec) error {
	s := sp.session
	proc, err := process.Start(spec, &process.Options{
		Context:       ctx,
		RetainedBytes: s.opts.RetainedBytes,
		Budget:        s.budget,
		Listener:      sp,
		Input:         process.InputQuota{Quota: s.quotas.input, Principal: s.quotaKey},
		Owner:         s.trees,
		Name:          sp.id,
		DrainTimeout:  s.opts.DrainTimeout,
	})
	if err == nil {
		s.counts.started.Add(1)
		sp.record(proc, spec)
		err = sp.adopt(proc, spec)
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
	failure := sp.failLocked(startError(err))
	s.mu.Unlock()
	if fault, ok := errors.AsType[*process.PanicError](err); ok {
		s.log.Error("starting a process panicked", "processId", sp.id, "panic", fault.Value, "stack", string(fault.Stack))
	}
	return failure
}

// adopt adds a started process to the session.
func (sp *sessionProcess) adopt(proc *process.Process, spec process.Spec) (err error) {
	s := sp.session
	defer func() {
		if v := recover(); v != nil {
			err = &process.PanicError{Program: spec.Argv[0], Value: v, Stack: debug.Stack()}
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	sp.proc = proc
	proc.Log.SetEvict(s.evictLocked())
	s.log.Info("process started", "processId", sp.id, "pid", proc.Pid(), "argv", commandLine(proc), "tty", spec.TTY)
	if s.ended || sp.cancelled {
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s start was cancelled", sp.id)
	}
	return nil
}

// Announce lets the session send the events of a started process. Further calls have no
// effect.
func (s *Session) Announce(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.processes[id]; sp != nil && sp.proc != nil && !sp.announced {
		sp.announced = true
		s.outboxesLocked(func(o *Outbox) {
			if o.capabilities.ProcessEvents {
				o.viewLocked(sp).started = true
			}
		})
		sp.queueLocked()
		sp.noteClosedLocked()
		if sp.wantsAck && s.owner != nil {
			s.owner.puller.WantAck()
		}
	}
}

// commandLine returns the beginning of a process's arguments, for the log.
func commandLine(p *process.Process) string {
	about := p.Describe()
	if about.ArgvTruncated {
		return fmt.Sprintf("%q and more", about.Argv)
	}
	return fmt.Sprintf("%q", about.Argv)
}

// failLocked forgets a process that could not be started.
func (sp *sessionProcess) failLocked(err *protocol.Error) error {
	s := sp.session
	delete(s.processes, sp.id)
	sp.releaseLocked()
	s.outboxesLocked(func(o *Outbox) {
		o.forgetLocked(sp)
		if o.capabilities.ProcessEvents {
			o.failures.add(sp.id, err)
			o.puller.Wake()
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

// acquireLocked counts the process among the live ones of its principal.
func (sp *sessionProcess) acquireLocked() error {
	s := sp.session
	if s.quotaKey == quota.None {
		return nil
	}
	if refusal := s.quotas.processes.Take(s.quotaKey); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s refused: %s", sp.id, refusal.Of("has", "live processes"))
	}
	sp.counted = true
	return nil
}

// releaseLocked undoes acquireLocked for a process that is no longer live.
func (sp *sessionProcess) releaseLocked() {
	if s := sp.session; sp.counted {
		sp.counted = false
		s.quotas.processes.Release(s.quotaKey)
	}
}

// Exited implements process.Listener.
func (sp *sessionProcess) Exited(exit protocol.ExitRecord) {
	s := sp.session
	s.log.Info("process exited", "processId", sp.id, "exitCode", exit.ExitCode, "signal", exit.Signal, "endedBy", string(exit.EndedBy))
	if s.opts.Exited != nil {
		s.opts.Exited(s, sp.id, exit)
	}
}

// delivered reports whether the owner of a closed process knows how it ended.
func (sp *sessionProcess) delivered() bool { return sp.proc.Log.Acked().Seq == sp.proc.Log.LastSeq() }

// noteClosedLocked starts the timer of a process that has closed, once no descendant holds its
// streams any more. Until then it counts as live, because it costs as much.
func (sp *sessionProcess) noteClosedLocked() {
	s := sp.session
	if sp.proc == nil || !sp.closedAt.IsZero() || !sp.proc.Log.IsClosed() || sp.proc.Log.BackgroundOpen() {
		return
	}
	sp.closedAt = time.Now()
	sp.releaseLocked()
	s.closed = append(s.closed, sp)
	if len(s.closed) > s.opts.MaxClosed {
		oldest := max(0, slices.IndexFunc(s.closed, (*sessionProcess).delivered))
		s.closed[oldest].forgetLocked()
		s.closed = slices.Delete(s.closed, oldest, oldest+1)
	}
	if s.expiry == nil {
		s.expiry = time.AfterFunc(s.opts.ClosedTTL, s.expireClosed)
	}
}

// forgetLocked forgets a closed process. Its background processes still belong to the
// session.
func (sp *sessionProcess) forgetLocked() {
	s := sp.session
	delete(s.processes, sp.id)
	s.outboxesLocked(func(o *Outbox) { o.forgetLocked(sp) })
	s.dismissSlowLocked()
	sp.proc.Release()
}

func (sp *sessionProcess) listed() protocol.ListedProcess {
	about, status := sp.proc.Describe(), sp.proc.Log.Status()
	state := protocol.StateRunning
	switch {
	case status.Closed:
		state = protocol.StateClosed
	case status.Exit != nil:
		state = protocol.StateExited
	}
	listed := protocol.ListedProcess{
		ProcessID:     sp.id,
		Pid:           about.Pid,
		Argv:          about.Argv,
		ArgvTruncated: about.ArgvTruncated,
		Cwd:           protocol.URIPath(about.Dir),
		TTY:           about.TTY,
		StartedAtMs:   about.Started.UnixMilli(),
		State:         state,
		NextSeq:       status.NextSeq,
		RetainedBytes: status.RetainedBytes,
		StdinClosed:   sp.proc.StdinClosed(),
		Exit:          status.Exit,
	}
	if background := sp.proc.Log.Background(); background != nil {
		status := background.Status()
		listed.Background = &protocol.BackgroundOutput{
			NextSeq: status.NextSeq, RetainedBytes: status.RetainedBytes, Closed: status.Closed,
		}
	}
	return listed
}

func listedBackground(b ownership.Background) protocol.BackgroundProcess {
	return protocol.BackgroundProcess{
		ProcessID: b.ID, ParentProcessID: b.Name, Pid: b.Pid, Argv: b.Argv, ArgvTruncated: b.ArgvTruncated,
	}
}

// release waits until a killed process is closed and nothing of it is read any more, and
// releases its memory.
func release(p *process.Process) {
	<-p.Closed()
	p.Release()
	<-p.Done()
}

// Recorder records processes. Package recording has one.
type Recorder interface {
	// Record begins to record a process that has just started, from its first event on.
	// It must not wait, and returns nil if it does not record the process.
	Record(about Recorded, log *output.Log) Recording
}

// Recorded describes a process to be recorded.
type Recorded struct {
	Principal, Session, Process string
	SessionName                 string                // "" if it has none
	Limited                     bool                  // the principal has a quota
	Size                        protocol.TerminalSize // of its terminal; zero if it has none
	Term                        string                // the kind of its terminal
	process.Description
}

// Recording is the recording of one process. It reads the output from the process's log,
// and ends after the closed event.
type Recording interface {
	process.Tap
	// Done is closed when nothing more will be read from the log.
	Done() <-chan struct{}
}

// record begins to record a process, before a client can write to it.
func (sp *sessionProcess) record(proc *process.Process, spec process.Spec) {
	s := sp.session
	if s.opts.Recorder == nil {
		return
	}
	about := Recorded{
		Principal: s.Principal, Session: s.ID, Process: sp.id, Limited: s.quotaKey != quota.None,
		Description: proc.Describe(),
	}
	s.mu.Lock()
	about.SessionName = s.name
	s.mu.Unlock()
	if spec.TTY {
		about.Term = spec.Env["TERM"]
		if about.Size = spec.Size; about.Size == (protocol.TerminalSize{}) {
			about.Size = process.DefaultSize
		}
	}
	if sp.recording = s.opts.Recorder.Record(about, proc.Log); sp.recording != nil {
		proc.SetTap(sp.recording)
	}
}

// recordTimeout bounds how long an ended session waits until the rest of its output is
// recorded. A disk that is too slow loses that.
const recordTimeout = time.Second

// awaitRecordings waits until the output of closed processes is recorded.
func awaitRecordings(entries []*sessionProcess) {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	for _, sp := range entries {
		if sp.recording == nil {
			continue
		}
		<-sp.proc.Closed()
		select {
		case <-sp.recording.Done():
		case <-ctx.Done():
			return
		}
	}
}
