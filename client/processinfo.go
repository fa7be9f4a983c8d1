package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"execserver/protocol"
)

// ProcessInfo describes a process of a session (PROTOCOL.md, "process/list").
type ProcessInfo struct {
	Session       string // id of its session, in the result of AllProcesses
	ID            string
	PID           int      // at the machine
	Args          []string // the program first; only their beginning if ArgsTruncated
	ArgsTruncated bool

	// State is "running"; "exited" while something holds the output; "closed"; or
	// "background" for a process that a closed one left running. Of the fields below,
	// such a process has only Parent.
	State protocol.ProcessState

	Parent      string // id of the process that left it in the background; "" if unknown
	Dir         string // working directory at the start, as the machine spells it
	TTY         bool
	StdinClosed bool // a write would be refused
	Started     time.Time
	NextSeq     uint64 // number of the next event
	Retained    uint64 // bytes of output that the server retains
	Exit        *Exit  // nil while it runs
}

// Processes returns the processes of the session, whichever program started them, in the
// order of their starts, and after them what closed ones left running. The server needs
// the capability processList.
func (e *Environment) Processes(ctx context.Context) ([]ProcessInfo, error) {
	if !e.has(capList) {
		return nil, &UnsupportedError{"list processes", capList}
	}
	if e.opts.NoSession {
		return nil, fmt.Errorf("list processes: %w", ErrNoSession)
	}
	list, err := e.link.list(ctx, false)
	if err != nil {
		return nil, err
	}
	return e.infos(list), nil
}

func (e *Environment) infos(list *protocol.ListResult) []ProcessInfo {
	infos := make([]ProcessInfo, 0, len(list.Processes)+len(list.Background))
	for _, p := range list.Processes {
		infos = append(infos, ProcessInfo{
			Session: p.SessionID, ID: p.ProcessID, PID: p.Pid, Args: p.Argv, ArgsTruncated: p.ArgvTruncated, State: p.State,
			Dir: protocol.OSPathOn(e.Info().goos(), p.Cwd.String()), TTY: p.TTY, StdinClosed: p.StdinClosed,
			Started: time.UnixMilli(p.StartedAtMs), NextSeq: p.NextSeq, Retained: p.RetainedBytes, Exit: exitOf(p.Exit),
		})
	}
	for _, b := range list.Background {
		infos = append(infos, ProcessInfo{
			Session: b.SessionID, ID: b.ProcessID, PID: b.Pid, Args: b.Argv, ArgsTruncated: b.ArgvTruncated,
			State: b.State, Parent: b.ParentProcessID,
		})
	}
	return infos
}

// ProcessSnapshot is what a process has written so far, as far as the server retains it.
// A stream that the process does not have is nil.
type ProcessSnapshot struct {
	Stdout, Stderr, Terminal *StreamSnapshot

	NextSeq uint64 // EventsAfter(ctx, NextSeq-1) continues after the snapshot
	Closed  bool
	Exit    *Exit // nil while the process runs
}

// StreamSnapshot is the beginning and the end of one stream. If OmittedBytes is 0, Head has
// everything.
type StreamSnapshot = protocol.StreamSnapshot

// Snapshot returns what the process has written so far: of each stream the beginning and
// the end, at most maxBytes together, or all that is retained if maxBytes is 0 (PROTOCOL.md,
// "process/snapshot"). It consumes nothing. The server needs the capability
// processSnapshot.
func (p *Process) Snapshot(ctx context.Context, maxBytes int) (*ProcessSnapshot, error) {
	if p == nil {
		return nil, errNotStarted
	}
	if !p.env.has(capSnapshot) {
		return nil, &UnsupportedError{"take a snapshot", capSnapshot}
	}
	params := protocol.SnapshotParams{ProcessID: p.ID}
	if maxBytes > 0 {
		params.MaxBytes = new(uint64(maxBytes))
	}
	raw, err := p.env.link.repeat(ctx, protocol.MethodSnapshot, params)
	if err != nil {
		return nil, err
	}
	var r protocol.SnapshotResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	return &ProcessSnapshot{
		Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal, NextSeq: r.NextSeq, Closed: r.Closed, Exit: exitOf(r.Exit),
	}, nil
}

// Wait waits until the process has exited, and returns how. The process of a Cmd is better
// waited for with Cmd.Wait. Nobody but a reader needs the output of a process of Attach: if
// none has begun, Wait lets the process continue without one.
//
// The error is an *ExitMissingError if the end of the process will stay unknown, or the
// cause of ctx.
func (p *Process) Wait(ctx context.Context) (*Exit, error) {
	if p == nil {
		return nil, errNotStarted
	}
	p.letGo()
	select {
	case <-p.exitedCh:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	exit, failure := p.outcome()
	if exit != nil {
		return exit, nil
	}
	return nil, failure
}
