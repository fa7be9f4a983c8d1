package session

import (
	"context"
	"errors"
	"syscall"
	"time"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/protocol"
)

// background lists the processes that closed processes of the session left running.
func (s *Session) background() []protocol.BackgroundProcess {
	var list []protocol.BackgroundProcess
	for _, b := range s.owner.Background() {
		list = append(list, listedBackground(b))
	}
	return list
}

func listedBackground(b ownership.Background) protocol.BackgroundProcess {
	return protocol.BackgroundProcess{
		ProcessID: b.ID, ParentProcessID: b.Name, Pid: b.Pid, Argv: b.Argv, ArgvTruncated: b.ArgvTruncated,
	}
}

// ReadBackground serves process/readBackground. It waits for chunks after the number, or
// for the end, for at most wait or until ctx ends. reserve is as in Read.
func (s *Session) ReadBackground(ctx context.Context, p protocol.ReadParams, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadBackgroundResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	after := value(p.AfterSeq)
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		e.proc.Log.WaitBackground(waitCtx, after)
		cancel()
	}
	if background := e.proc.Log.Background(); background != nil {
		if err := reserveRead(background, after, p.MaxBytes, reserve); err != nil {
			return nil, err
		}
	}
	result := e.proc.Log.ReadBackground(after, p.MaxBytes)
	return result, s.stillKnown(e)
}

// inBackground reports whether an id can be that of a background process. A process of
// the client with the same id takes precedence.
func (s *Session) inBackground(id string) bool {
	if !ownership.IsBackgroundID(id) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[id] == nil
}

// signalBackground serves process/signal for one background process. It returns nil if
// that has ended.
func (s *Session) signalBackground(id string, sig syscall.Signal) error {
	err := s.owner.SignalBackground(id, sig)
	if _, unknown := errors.AsType[*ownership.UnknownBackgroundError](err); err == nil || unknown {
		return nil
	}
	return protocol.Errorf(protocol.CodeInternal, "failed to signal process: %s", err)
}

// endBackground asks a background process to end, kills it after timeout, and reports at
// once whether it was running. The first request counts. The id stands for one process
// for good, so no other process is killed.
func (s *Session) endBackground(id string, timeout time.Duration) (running bool) {
	if s.owner.SignalBackground(id, process.SignalNumber("SIGTERM")) != nil {
		return false
	}
	if cont := process.SignalNumber("SIGCONT"); cont != 0 {
		_ = s.owner.SignalBackground(id, cont) // it may have ended
	}
	kill := func() { _ = s.owner.SignalBackground(id, process.SignalNumber("SIGKILL")) }
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
