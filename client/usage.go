package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"execserver/protocol"
)

// ProcessUsage is what a process and everything that it has started use (PROTOCOL.md,
// "process/usage").
type ProcessUsage struct {
	Session   string        // id of its session, in the result of AllUsage
	ID        string        // of the process
	Processes int           // that run at the machine now
	CPU       time.Duration // used so far
	Memory    int64         // bytes now; what processes share counts for each of them
}

// Usage returns what the processes of the session use, those that have ended as well if
// they have left something running. Processes of which nothing runs are left out. The
// server needs the capability processUsage.
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
	raw, err := e.link.repeat(ctx, protocol.MethodUsage, protocol.UsageParams{All: all})
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
