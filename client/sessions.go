package client

import (
	"context"
	"encoding/json"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// SessionInfo describes a session of a server (PROTOCOL.md, "Listing sessions").
type SessionInfo struct {
	ID        string
	Name      string // given by Keep; "" if there is none
	Client    string // Options.Name of the program that owns it, or owned it last
	Own       bool   // it belongs to the principal of this Environment
	Principal string // whose it is, unless it is Own

	Created  time.Time
	Attached bool          // a connection owns it
	Ends     time.Time     // of one that is not attached: when it ends if nobody comes back; may be zero
	Keep     time.Duration // its lease; 0: none

	EvictOutput bool // of its lease

	Observers int // connections
	Processes int // that Processes would list, without those in the background
	Running   int // of these, those that have not exited
}

// Sessions returns the sessions at the server that this Environment may observe, in the
// order in which they were created, its own among them: those of the same principal, and
// with the right to observe others, those of all principals. With ErrTruncated, the last
// ones are left out. The server needs the capability sessionList.
func (e *Environment) Sessions(ctx context.Context) ([]SessionInfo, error) {
	if !e.has(capSessions) {
		return nil, &UnsupportedError{"list sessions", capSessions}
	}
	raw, err := e.link.repeat(ctx, protocol.MethodSessions, nil)
	if err != nil {
		return nil, err
	}
	var r protocol.SessionsResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	infos := make([]SessionInfo, 0, len(r.Sessions))
	for _, s := range r.Sessions {
		info := SessionInfo{
			ID: s.SessionID, Name: s.Name, Client: s.ClientName, Own: s.Own, Principal: s.Principal,
			Created: time.UnixMilli(s.CreatedAtMs), Attached: s.State == protocol.SessionAttached, Keep: millis(s.KeepMs),
			EvictOutput: s.DetachedOutput != nil && *s.DetachedOutput == protocol.EvictOutput,
			Observers:   s.Observers, Processes: s.Processes, Running: s.Running,
		}
		if s.EndsAtMs != 0 {
			info.Ends = time.UnixMilli(s.EndsAtMs)
		}
		infos = append(infos, info)
	}
	if r.Truncated {
		return infos, ErrTruncated
	}
	return infos, nil
}

// AllProcesses returns the processes of all sessions that Sessions returns, in the same
// order, each with the id of its session. With ErrTruncated, those of the last sessions are
// left out. The server needs the capability sessionList.
func (e *Environment) AllProcesses(ctx context.Context) ([]ProcessInfo, error) {
	if !e.has(capSessions) {
		return nil, &UnsupportedError{"list the processes of all sessions", capSessions}
	}
	list, err := e.link.list(ctx, true)
	if err != nil {
		return nil, err
	}
	infos := e.infos(list)
	if list.Truncated {
		return infos, ErrTruncated
	}
	return infos, nil
}

// learnLease asks for the lease of a session that another program began. If the server does
// not tell, it has none.
func (l *link) learnLease(ctx context.Context, conn *rpc.Conn) {
	if !l.env.inherited || l.isObserving() || !l.machine.Capabilities[capSessions] {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.env.opts.InitializeTimeout)
	defer cancel()
	raw, err := conn.Call(ctx, protocol.MethodSessions, nil)
	if err != nil {
		return
	}
	var r protocol.SessionsResult
	if json.Unmarshal(raw, &r) != nil {
		return
	}
	for _, s := range r.Sessions {
		if s.SessionID == l.sessionID() {
			l.setLease(millis(s.KeepMs))
		}
	}
}
