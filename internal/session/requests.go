package session

import (
	"context"
	"errors"
	"syscall"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/quota"
	"execserver/protocol"
)

// Read serves process/read. It waits for events after the number, or until ctx ends. Then
// it calls reserve with the approximate size of the answer before it collects it.
func (s *Session) Read(ctx context.Context, p protocol.ReadParams, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	sp, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	defer sp.notePoll(value(p.AfterSeq))()
	return sp.read(ctx, p, wait, 0, reserve)
}

// Peek serves the process/read of an observer. It is like Read, but does not prevent
// eviction.
func (s *Session) Peek(ctx context.Context, p protocol.ReadParams, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	sp, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	return sp.read(ctx, p, wait, peekDelay, reserve)
}

// read waits for events, and then for delay if it had to wait.
func (sp *sessionProcess) read(ctx context.Context, p protocol.ReadParams, wait, delay time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	log := sp.proc.Log
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
	return result, sp.stillKnown()
}

// notePoll distinguishes a client that polls from one that reads once after a resume to
// fill a gap: unread output is protected from eviction for the former. A client that
// sends process/ack needs no such protection. The caller must call done after the read.
func (sp *sessionProcess) notePoll(after uint64) (done func()) {
	s := sp.session
	s.mu.Lock()
	o := s.owner
	polls := o != nil && !o.capabilities.ProcessAck && s.processes[sp.id] == sp
	if polls {
		v := o.viewLocked(sp)
		v.reads++
		polls = !o.resumed || v.reads > 1
	}
	s.mu.Unlock()
	if !polls {
		return func() {}
	}
	sp.proc.Log.Poll(after)
	return sp.proc.Log.HoldPoll()
}

// stillKnown returns an error if the process has been forgotten, and its output with it,
// perhaps while a request waited for the reservation of its answer.
func (sp *sessionProcess) stillKnown() error {
	switch known, err := sp.session.find(sp.id); {
	case err != nil:
		return err
	case known != sp: // another one has its id now
		return protocol.Errorf(protocol.CodeInvalidRequest, "unknown process id %s", sp.id)
	}
	return nil
}

// peekDelay delays the answer to an observer that has waited for output, so that the owner is
// served first: an observer must not delay the echo of the owner's keys.
const peekDelay = 5 * time.Millisecond

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// reserveRead reserves memory for the answer of Read. Output may arrive while it waits.
func reserveRead(log *output.Log, after uint64, maxBytes *uint64, reserve func(bytes int) error) error {
	for size := log.EstimateReadSize(after, maxBytes); ; {
		if err := reserve(size); err != nil {
			return err
		}
		now := log.EstimateReadSize(after, maxBytes)
		if now <= 2*size {
			return nil
		}
		size = now
	}
}

func value(p *uint64) uint64 {
	if p == nil {
		return 0
	}
	return *p
}

// Wait serves process/wait. It waits until the process has exited, wait is over, or ctx
// ends.
func (s *Session) Wait(ctx context.Context, id string, wait *time.Duration) (protocol.WaitResult, error) {
	sp, err := s.find(id)
	if err != nil {
		return protocol.WaitResult{}, err
	}
	if wait != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *wait)
		defer cancel()
	}
	sp.proc.Log.WaitExit(ctx)
	status := sp.proc.Log.Status()
	return protocol.WaitResult{Exit: status.Exit, Closed: status.Closed}, nil
}

// Snapshot serves process/snapshot. reserve is as in Read.
func (s *Session) Snapshot(p protocol.SnapshotParams, reserve func(bytes int) error) (*protocol.SnapshotResult, error) {
	sp, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	if err := reserve(sp.proc.Log.EstimateSnapshotSize(p.MaxBytes)); err != nil {
		return nil, err
	}
	result := sp.proc.Log.Snapshot(p.MaxBytes)
	return result, sp.stillKnown()
}

// Screen serves process/screen. It stops when ctx ends. reserve is as in Read.
func (s *Session) Screen(ctx context.Context, p protocol.ScreenParams, reserve func(bytes int) error) (*protocol.ScreenResult, error) {
	sp, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	return sp.terminal.show(ctx, sp, p, reserve)
}

// List serves process/list: the started processes in the order of their starts, then the
// background processes.
func (s *Session) List() protocol.ListResult {
	entries := s.started()
	list := make([]protocol.ListedProcess, len(entries))
	for i, sp := range entries {
		list[i] = sp.listed()
	}
	return protocol.ListResult{Processes: list, Background: s.background()}
}

// listedBytes is the approximate size of a process with a long command line in the answer
// to process/list.
const listedBytes = 2 << 10

// ListSize returns the approximate maximum size of List's result on the wire.
func (s *Session) ListSize() int {
	s.mu.Lock()
	n := len(s.processes)
	s.mu.Unlock()
	return listedBytes * (n + len(s.background()) + 1)
}

// Usage serves process/usage for the session. reserve is as in Session.Read.
func (s *Session) Usage(reserve func(bytes int) error) (protocol.UsageResult, error) {
	return usageOf([]*Session{s}, s.opts.Ownership, reserve, false)
}

// Write serves process/write; see process.Process.Write.
func (s *Session) Write(p protocol.WriteParams, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool, err error) {
	s.mu.Lock()
	sp := s.processes[p.ProcessID]
	var proc *process.Process
	if sp != nil {
		proc = sp.proc
	}
	s.mu.Unlock()
	switch {
	case sp == nil:
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

// CloseStdin serves process/closeStdin.
func (s *Session) CloseStdin(id string) error {
	sp, err := s.find(id)
	if err != nil {
		return err
	}
	return refused(id, "close the stdin of process %s: %s", sp.proc.CloseStdin())
}

// Resize serves process/resize.
func (s *Session) Resize(p protocol.ResizeParams) error {
	sp, err := s.find(p.ProcessID)
	if err != nil {
		return err
	}
	return refused(p.ProcessID, "resize the terminal of process %s: %s", sp.proc.Resize(p.Size))
}

// Signal serves process/signal. It returns nil for unknown, starting and ended processes.
func (s *Session) Signal(p protocol.SignalParams) error {
	sp, err := s.find(p.ProcessID)
	inBackground := s.inBackground(p.ProcessID)
	if err != nil && !inBackground {
		return nil
	}
	number := process.SignalNumber(p.Name())
	switch {
	case number == 0:
		return protocol.Errorf(protocol.CodeInternal, "failed to signal process: %s cannot be sent on this system", p.Name())
	case inBackground && p.ToForeground:
		return refused(p.ProcessID, "signal the foreground of process %s: %s", process.ErrNoTerminal)
	case inBackground:
		return s.signalBackground(p.ProcessID, number)
	}
	send := sp.proc.Signal
	if p.ToForeground {
		send = sp.proc.SignalForeground
	}
	switch err := send(number); {
	case err == nil, errors.Is(err, process.ErrFinished): // the client may not know yet that it has
		return nil
	case p.ToForeground:
		return refused(p.ProcessID, "signal the foreground of process %s: %s", err)
	default:
		return protocol.Errorf(protocol.CodeInternal, "failed to signal process: %s", err)
	}
}

// refused gives an error of a process its code: an operation that the process does not
// support is the request's fault, anything else the system's. A nil error stays nil.
func refused(id, format string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, process.ErrTerminal), errors.Is(err, process.ErrNoTerminal):
		return protocol.Errorf(protocol.CodeInvalidRequest, format, id, err)
	}
	return protocol.Errorf(protocol.CodeInternal, format, id, err)
}

// Terminate kills a process and reports whether it was running.
func (s *Session) Terminate(id string) (running bool) {
	if s.inBackground(id) {
		return s.signalToEnd(id, "SIGKILL")
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
	sp := s.processes[id]
	if sp != nil && sp.proc == nil {
		sp.cancelled = true
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	return sp != nil && end(sp.proc)
}

// ReadBackground serves process/readBackground. It waits for chunks after the number, or
// for the end, for at most wait or until ctx ends. reserve is as in Read.
func (s *Session) ReadBackground(ctx context.Context, p protocol.ReadParams, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadBackgroundResult, error) {
	sp, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	after := value(p.AfterSeq)
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		sp.proc.Log.WaitBackground(waitCtx, after)
		cancel()
	}
	if background := sp.proc.Log.Background(); background != nil {
		if err := reserveRead(background, after, p.MaxBytes, reserve); err != nil {
			return nil, err
		}
	}
	result := sp.proc.Log.ReadBackground(after, p.MaxBytes)
	return result, sp.stillKnown()
}

// background lists the processes that closed processes of the session left running.
func (s *Session) background() []protocol.BackgroundProcess {
	var list []protocol.BackgroundProcess
	for _, b := range s.trees.Background() {
		list = append(list, listedBackground(b))
	}
	return list
}

// inBackground reports whether an id can be that of a background process. A process of
// the client with the same id takes precedence.
func (s *Session) inBackground(id string) bool {
	if !ownership.IsBackgroundID(id) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[id] == nil
}

// signalBackground serves process/signal for one background process. It returns nil if
// that has ended.
func (s *Session) signalBackground(id string, sig syscall.Signal) error {
	err := s.trees.SignalBackground(id, sig)
	if _, unknown := errors.AsType[*ownership.UnknownBackgroundError](err); err == nil || unknown {
		return nil
	}
	return protocol.Errorf(protocol.CodeInternal, "failed to signal process: %s", err)
}

// signalToEnd signals a background process that is to end, and reports whether it was
// running, even if it could not be signaled.
func (s *Session) signalToEnd(id, sig string) (running bool) {
	_, ended := errors.AsType[*ownership.UnknownBackgroundError](s.trees.SignalBackground(id, process.SignalNumber(sig)))
	return !ended
}

// endBackground asks a background process to end, kills it after timeout, and reports at
// once whether it was running. Only the first request sets a timeout. The id is never used
// for another process, so no other process is killed.
func (s *Session) endBackground(id string, timeout time.Duration) (running bool) {
	if !s.signalToEnd(id, "SIGTERM") {
		return false
	}
	if cont := process.SignalNumber("SIGCONT"); cont != 0 {
		_ = s.trees.SignalBackground(id, cont) // it may have ended
	}
	kill := func() { s.signalToEnd(id, "SIGKILL") }
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.graces[id] != nil {
		return true
	}
	if len(s.graces) >= s.opts.MaxProcesses {
		// Kill it without grace rather than keep memory for each.
		go kill() // ends with the signal
		return true
	}
	if s.graces == nil {
		s.graces = make(map[string]*time.Timer)
	}
	s.graces[id] = time.AfterFunc(timeout, func() {
		kill()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.graces, id)
	})
	return true
}

// stopGracesLocked stops the timers of an ending session. All of its processes end with
// it.
func (s *Session) stopGracesLocked() {
	for _, timer := range s.graces {
		timer.Stop()
	}
	clear(s.graces)
}
