package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"execserver/protocol"
)

// ProcessInfo describes a process of a session (EXTENSIONS.md, "processList").
type ProcessInfo struct {
	Session       string // id of its session, in the result of AllProcesses
	ID            string
	PID           int      // on the machine
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
	list, err := e.remote.list(ctx, false)
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

// ProcessUsage is what a process and everything that it has started use (EXTENSIONS.md,
// "processUsage").
type ProcessUsage struct {
	Session   string        // id of its session, in the result of AllUsage
	ID        string        // of the process
	Processes int           // that run on the machine now
	CPU       time.Duration // used so far
	Memory    int64         // bytes now; what processes share counts for each of them
}

// Usage returns the resources that the processes of the session use, including those of
// processes that have ended but have left something running. Processes with nothing
// running are left out. The server needs the capability processUsage.
func (e *Environment) Usage(ctx context.Context) ([]ProcessUsage, error) {
	if e.opts.NoSession {
		return nil, fmt.Errorf("ask what processes use: %w", ErrNoSession)
	}
	return e.usage(ctx, false)
}

// AllUsage is like Usage for the sessions that Sessions lists. The error wraps
// ErrTruncated if there are more processes than an answer holds.
func (e *Environment) AllUsage(ctx context.Context) ([]ProcessUsage, error) {
	return e.usage(ctx, true)
}

func (e *Environment) usage(ctx context.Context, all bool) ([]ProcessUsage, error) {
	if !e.has(capUsage) {
		return nil, &UnsupportedError{"ask what processes use", capUsage}
	}
	var result protocol.UsageResult
	raw, err := e.conns.repeat(ctx, protocol.MethodUsage, protocol.UsageParams{All: all})
	if err == nil {
		err = json.Unmarshal(raw, &result)
	}
	if err != nil {
		return nil, err
	}
	list := make([]ProcessUsage, 0, len(result.Processes))
	for _, p := range result.Processes {
		list = append(list, ProcessUsage{
			Session: p.SessionID, ID: p.ProcessID, Processes: p.Processes,
			CPU: time.Duration(p.CPUMs) * time.Millisecond, Memory: p.MemoryBytes,
		})
	}
	if result.Truncated {
		return list, fmt.Errorf("ask what processes use: %w", ErrTruncated)
	}
	return list, nil
}

// Attach returns a process of the session that another program started: the program that left the
// session (Options.Session), or the owner of an observed session (Options.Observe). Processes lists
// them. Events and Copy of the Process begin with the output that the server still retains, and
// continue live. For evicted output they report a *GapError.
//
// If this Environment owns the session, the server keeps the output until somebody reads it or calls
// Wait. Until then the process blocks when it has written more than the server retains. An observer
// never delays a process.
//
// Calls with the same id return the same *Process until it has closed. For a process that this
// Environment started, that is the Process of its Cmd. If the process does not exist, the error is a
// *protocol.Error with the code protocol.CodeInvalidRequest.
func (e *Environment) Attach(ctx context.Context, id string) (*Process, error) {
	for {
		p, first, err := e.attached(id)
		switch {
		case err != nil:
			return nil, err
		case first:
			if err := e.fetchInfo(ctx, p); err != nil {
				return nil, err
			}
			return p, nil
		case !p.attached:
			return p, nil
		}
		select {
		case <-p.fetched:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if p.fetchErr == nil {
			return p, nil
		}
	}
}

// attached returns the process with an id, and whether it is new. A new one receives its
// events from now on.
func (e *Environment) attached(id string) (p *Process, first bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, false, e.err
	}
	if p := e.procs[id]; p != nil {
		return p, false, nil
	}
	p = newProcess(e)
	p.ID, p.attached, p.started = id, true, true
	p.fetched = make(chan struct{})
	p.asked.Store(true)
	p.input.prefix = uniquePrefix()
	p.pin = &cursor{p: p, next: 1}
	p.log.cursors = append(p.log.cursors, p.pin)
	e.procs[id] = p
	return p, true, nil
}

// uniquePrefix makes ids that no other program has used in the session.
func uniquePrefix() string { return strings.ToLower(rand.Text()[:8]) + "-" }

// fetchInfo asks the server about a process that was just attached.
func (e *Environment) fetchInfo(ctx context.Context, p *Process) error {
	defer close(p.fetched)
	state, err := e.remote.read(ctx, p.ID, maxSeq, 1)
	if err == nil {
		p.tty, err = e.onTerminal(ctx, p.ID)
	}
	if err != nil {
		p.fetchErr = err
		p.fail(err)
		return err
	}
	p.adopt(state)
	return nil
}

// onTerminal reports whether a process runs on a terminal, as far as the server says so.
func (e *Environment) onTerminal(ctx context.Context, id string) (bool, error) {
	if !e.has(capList) {
		return false, nil
	}
	list, err := e.remote.list(ctx, false)
	if err != nil {
		return false, err
	}
	for _, listed := range list.Processes {
		if listed.ProcessID == id {
			return listed.TTY, nil
		}
	}
	return false, nil // it was forgotten meanwhile
}

// foreign reports whether a process with this id may be one that another program started,
// and that this one has not read to its end.
func (e *Environment) foreign(id string) bool {
	if !e.conns.inherited {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.read[id] && !isOwn(id, e.prefix)
}

func isOwn(id, prefix string) bool { return len(id) > len(prefix) && id[:len(prefix)] == prefix }

// noteRead records that a process of Attach has closed and was read to its end.
func (e *Environment) noteRead(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.read == nil {
		e.read = make(map[string]bool)
	}
	e.read[id] = true
}

// terminateOthers ends the processes of the session that are not among those given.
func (e *Environment) terminateOthers(ctx context.Context, known []*Process) {
	if !e.has(capList) {
		return
	}
	// Again, because what closes between two requests may leave something behind.
	for ctx.Err() == nil {
		list, err := e.remote.list(ctx, false)
		if err != nil {
			return // the end of the session ends them
		}
		var ids []string
		for _, listed := range list.Processes {
			mine := slices.ContainsFunc(known, func(p *Process) bool { return p.ID == listed.ProcessID })
			if listed.State != protocol.StateClosed && !mine {
				ids = append(ids, listed.ProcessID)
			}
		}
		for _, left := range list.Background {
			ids = append(ids, left.ProcessID)
		}
		if len(ids) == 0 {
			return
		}
		for _, id := range ids {
			_ = e.remote.terminate(ctx, id, 0)
		}
		select {
		case <-time.After(minPause):
		case <-ctx.Done():
		}
	}
}
