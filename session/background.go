package session

import (
	"context"
	"errors"
	"syscall"
	"time"

	"execserver/process"
	"execserver/protocol"
)

// background lists what closed processes of the session have left running.
func (s *Session) background() []protocol.BackgroundProcess {
	var list []protocol.BackgroundProcess
	for _, b := range s.owner.Background() {
		list = append(list, protocol.BackgroundProcess{
			ProcessID: b.ID, ParentProcessID: b.Name, Pid: b.Pid, Argv: b.Argv, ArgvTruncated: b.ArgvTruncated,
		})
	}
	return list
}

// ReadBackground serves process/readBackground: it waits until there is something
// to tell after the number, at most for wait or until ctx ends; reserve is that of
// Read.
func (s *Session) ReadBackground(ctx context.Context, p protocol.Read, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadBackgroundResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	after := value(p.AfterSeq)
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		e.proc.WaitBackground(waitCtx, after)
		cancel()
	}
	if background := e.proc.Log.Background(); background != nil {
		if err := reserveRead(background, after, p.MaxBytes, reserve); err != nil {
			return nil, err
		}
	}
	return e.proc.ReadBackground(after, p.MaxBytes), nil
}

// inBackground reports whether an id can be that of a background process. A
// process of the client's with the same id comes first.
func (s *Session) inBackground(id string) bool {
	if !process.IsBackgroundID(id) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[id] == nil
}

// signalBackground serves process/signal for one background process. One that has
// ended is no error.
func (s *Session) signalBackground(id string, sig syscall.Signal) error {
	err := s.owner.SignalBackground(id, sig)
	if _, unknown := errors.AsType[*process.UnknownBackgroundError](err); err == nil || unknown {
		return nil
	}
	return protocol.Errorf(protocol.CodeInternal, "failed to signal process: %s", err)
}

// endBackground asks a background process to end, ends it after timeout, and
// reports at once whether it was running. The first request counts: the id is
// that of one process for good, so that no other one is hit.
func (s *Session) endBackground(id string, timeout time.Duration) (running bool) {
	if s.owner.SignalBackground(id, process.SignalNumber("SIGTERM")) != nil {
		return false
	}
	if cont := process.SignalNumber("SIGCONT"); cont != 0 {
		_ = s.owner.SignalBackground(id, cont) // it may be gone already
	}
	kill := func() { _ = s.owner.SignalBackground(id, process.SignalNumber("SIGKILL")) }
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.graces[id] != nil {
		return true
	}
	if len(s.graces) >= s.opts.MaxProcesses {
		// Ended without grace rather than not at all, or with memory for each.
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

// stopGracesLocked drops the timers of a session that ends, and all of its
// processes with it.
func (s *Session) stopGracesLocked() {
	for _, timer := range s.graces {
		timer.Stop()
	}
	clear(s.graces)
}
