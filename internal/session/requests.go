package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"execserver/internal/process"
	"execserver/protocol"
)

// Wait serves process/wait. It waits until the process has exited, wait is over, or ctx
// ends.
func (s *Session) Wait(ctx context.Context, id string, wait *time.Duration) (protocol.WaitResult, error) {
	e, err := s.find(id)
	if err != nil {
		return protocol.WaitResult{}, err
	}
	if wait != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *wait)
		defer cancel()
	}
	e.proc.Log.WaitExit(ctx)
	status := e.proc.Log.Status()
	return protocol.WaitResult{Exit: status.Exit, Closed: status.Closed}, nil
}

// Snapshot serves process/snapshot. reserve is as in Read.
func (s *Session) Snapshot(p protocol.SnapshotParams, reserve func(bytes int) error) (*protocol.SnapshotResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	if err := reserve(e.proc.Log.SnapshotSize(p.MaxBytes)); err != nil {
		return nil, err
	}
	result := e.proc.Log.Snapshot(p.MaxBytes)
	return result, s.stillKnown(e)
}

// listedBytes is the approximate size of a process with a long command line in the answer
// to process/list.
const listedBytes = 2 << 10

// ListSize returns the approximate maximum size of List's result on the wire.
func (s *Session) ListSize() int {
	s.mu.Lock()
	n := len(s.entries)
	s.mu.Unlock()
	return listedBytes * (n + len(s.background()) + 1)
}

// List serves process/list: the started processes in the order of their starts, then the
// background processes.
func (s *Session) List() protocol.ListResult {
	entries := s.started()
	list := make([]protocol.ListedProcess, len(entries))
	for i, e := range entries {
		list[i] = e.listed()
	}
	return protocol.ListResult{Processes: list, Background: s.background()}
}

// started returns the processes that have started, in the order of their starts.
func (s *Session) started() []*entry {
	s.mu.Lock()
	entries := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		if e.proc != nil {
			entries = append(entries, e)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.order, b.order) })
	return entries
}

func (e *entry) listed() protocol.ListedProcess {
	about, status := e.proc.Describe(), e.proc.Log.Status()
	state := protocol.StateRunning
	switch {
	case status.Closed:
		state = protocol.StateClosed
	case status.Exit != nil:
		state = protocol.StateExited
	}
	listed := protocol.ListedProcess{
		ProcessID:     e.id,
		Pid:           about.Pid,
		Argv:          about.Argv,
		ArgvTruncated: about.ArgvTruncated,
		Cwd:           protocol.URIPath(about.Dir),
		TTY:           about.TTY,
		StartedAtMs:   about.Started.UnixMilli(),
		State:         state,
		NextSeq:       status.NextSeq,
		RetainedBytes: status.RetainedBytes,
		StdinClosed:   e.proc.StdinClosed(),
		Exit:          status.Exit,
	}
	if background := e.proc.Log.Background(); background != nil {
		status := background.Status()
		listed.Background = &protocol.BackgroundOutput{
			NextSeq: status.NextSeq, RetainedBytes: status.RetainedBytes, Closed: status.Closed,
		}
	}
	return listed
}

// CloseStdin serves process/closeStdin.
func (s *Session) CloseStdin(id string) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	return refused(id, "close the stdin of process %s: %s", e.proc.CloseStdin())
}

// Resize serves process/resize.
func (s *Session) Resize(p protocol.ResizeParams) error {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return err
	}
	return refused(p.ProcessID, "resize the terminal of process %s: %s", e.proc.Resize(p.Size))
}

// Signal serves process/signal. It returns nil for unknown, starting and ended processes.
func (s *Session) Signal(p protocol.SignalParams) error {
	e, err := s.find(p.ProcessID)
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
	send := e.proc.Signal
	if p.ToForeground {
		send = e.proc.SignalForeground
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
