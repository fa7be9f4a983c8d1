package client

import (
	"context"
	"encoding/json"
	"time"

	"execserver/protocol"
)

// Lease says how the server keeps a session that nobody is connected to (PROTOCOL.md,
// "Keeping a session").
type Lease struct {
	Name string        // names the session for people; "" leaves its name as it is
	For  time.Duration // from the end of a connection on; 0 gives the lease up

	// EvictOutput makes the server evict the oldest output of a process that has written
	// more than the server retains, while nobody is connected. A later reader gets a
	// *GapError. Without it, the process waits until somebody reads its output.
	EvictOutput bool
}

// Keep asks the server to keep the session after its connection has ended, in whatever
// way, with its processes and their output, and returns for how long the server grants
// that. A further call replaces the lease.
//
// While the session has a lease, Close leaves it and its processes at the server, like
// Detach. The server needs the capability sessionKeep. If the connection breaks, the
// request is repeated.
func (e *Environment) Keep(ctx context.Context, lease Lease) (granted time.Duration, err error) {
	if !e.has(capKeep) {
		return 0, &UnsupportedError{"keep the session", capKeep}
	}
	params := protocol.KeepParams{KeepMs: uint64(max(0, lease.For.Milliseconds()))}
	if lease.For > 0 {
		params.KeepMs = max(1, params.KeepMs)
	}
	if lease.Name != "" {
		params.Name = &lease.Name
	}
	if lease.EvictOutput {
		params.DetachedOutput = new(protocol.EvictOutput)
	}
	raw, err := e.link.repeat(ctx, protocol.MethodKeep, params)
	if err != nil {
		return 0, err
	}
	var r protocol.KeepResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return 0, err
	}
	granted = millis(r.KeepMs)
	e.link.setLease(granted)
	return granted, nil
}

func (l *link) setLease(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = d
}

// lease returns how long the server keeps the session because a program asked for it.
func (l *link) lease() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}
