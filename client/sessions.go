package client

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"execserver/protocol"
)

// Session returns the id of the session, or "" with Options.NoSession. Another program with the same
// credentials can resume or observe the session by the id, so keep it secret. If the session holds
// nothing, a reconnection may begin a new session with another id.
func (e *Environment) Session() string { return e.conns.sessionID() }

// Observing reports whether the Environment only observes a session, or has none.
func (e *Environment) Observing() bool { return e.conns.isObserving() }

// TakeOver makes an observer the owner of its session. The previous owner's Environment fails with
// ErrTakenOver. Loops over events continue, and now acknowledge the output that the previous owner
// has not. If the Environment already owns its session, TakeOver does nothing and returns nil. The
// server needs the capability sessionObserve.
//
// When several programs take over a session at the same time, the last one owns it. The others fail
// with ErrTakenOver, which TakeOver itself may return.
func (e *Environment) TakeOver(ctx context.Context) error {
	conns := e.conns
	if err := conns.permit(protocol.MethodTakeOver); err != nil {
		return err
	}
	for conns.isObserving() {
		conn, _, err := conns.current(ctx)
		if err != nil {
			return err
		}
		_, err = conn.Call(ctx, protocol.MethodTakeOver, nil)
		err = conns.outcome(ctx, conn, protocol.MethodTakeOver, err)
		switch {
		case errors.As(err, new(*brokenError)):
			continue // as an observer again, unless another program has the session now
		case err != nil:
			return err
		}
		conns.own(conn)
		conns.learnLease(ctx, conn)
	}
	for _, p := range e.live() {
		p.ackAgain()
		p.fill()
	}
	return nil
}

// Detach closes the connection, and leaves the session and its processes on the server. Calls and
// readers then fail with ErrClosed, as after Close. If the session holds anything, the server keeps
// it for Info.SessionLifetime.Detached or its lease; meanwhile another program can resume it with
// Options.Session.
//
// ctx limits the time in which the server confirms the output that this program has read. If ctx is
// done first, Detach still returns nil, and the next program may receive that output again. The
// error is an *UnsupportedError if the session ends with its connection, as with New and with a server
// that Launch starts, and ErrClosed if the Environment was closed before.
func (e *Environment) Detach(ctx context.Context) error {
	if !e.conns.resumes && e.conns.machine.SessionLifetime == nil {
		return &UnsupportedError{"detach", "a session that outlives its connection"}
	}
	err := ErrClosed
	e.once.Do(func() {
		err = nil
		e.conns.states.end()
		for _, p := range e.live() {
			p.ack()
		}
		_, _ = e.conns.try(ctx, protocol.MethodEnvironmentStatus, nil) // the answer comes after the acknowledgements
		e.end(ErrClosed)
		e.conns.detached.Store(true)
		e.shut()
	})
	return err
}

// Lease is a request to keep a session that has no connection.
type Lease struct {
	Name string        // a name for people; "" keeps the current name
	For  time.Duration // how long to keep the session without a connection; 0 ends the lease

	// EvictOutput makes the server evict the oldest output, while the session has no
	// connection, instead of blocking a process that writes more than the server retains. A
	// later reader gets a *GapError.
	EvictOutput bool
}

// Keep asks the server to keep the session, with its processes and their output, for lease.For after
// its connection has closed or broken. It returns the time that the server grants. A further call
// replaces the lease. While the session has a lease, Close does not kill its processes.
//
// lease.For is rounded down to milliseconds, and is at least one if it is positive. If the
// connection breaks, the request is repeated. The server needs the capability sessionKeep
// (EXTENSIONS.md).
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
	raw, err := e.conns.repeat(ctx, protocol.MethodKeep, params)
	if err != nil {
		return 0, err
	}
	var r protocol.KeepResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return 0, err
	}
	granted = millis(r.KeepMs)
	e.conns.setLease(granted)
	return granted, nil
}

// SessionInfo describes a session of a server (EXTENSIONS.md, "sessionList").
type SessionInfo struct {
	ID        string
	Name      string // given by Keep; "" if there is none
	Client    string // Options.Name of the program that owns it, or owned it last
	Own       bool   // the session belongs to the principal of this Environment
	Principal string // the principal to which it belongs otherwise

	Created  time.Time
	Attached bool          // a connection owns the session
	Ends     time.Time     // when a session that is not attached expires; zero if unknown
	Keep     time.Duration // length of the lease; 0 without one

	EvictOutput bool // Lease.EvictOutput

	Observers int // number of connections that observe the session
	Processes int // number of processes, without those in the background
	Running   int // number of processes that have not exited
}

// Sessions returns the sessions that this Environment may observe, oldest first, including its own:
// those of the same principal or, with the right to observe others, those of all principals. If
// there are too many, it returns the first ones and ErrTruncated. The server needs the capability
// sessionList.
func (e *Environment) Sessions(ctx context.Context) ([]SessionInfo, error) {
	if !e.has(capSessions) {
		return nil, &UnsupportedError{"list sessions", capSessions}
	}
	raw, err := e.conns.repeat(ctx, protocol.MethodSessions, nil)
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

// AllProcesses returns the processes of all sessions that Sessions returns, in the same order, each
// with the id of its session. If there are too many, it returns the first ones and ErrTruncated. The
// server needs the capability sessionList.
func (e *Environment) AllProcesses(ctx context.Context) ([]ProcessInfo, error) {
	if !e.has(capSessions) {
		return nil, &UnsupportedError{"list the processes of all sessions", capSessions}
	}
	list, err := e.remote.list(ctx, true)
	if err != nil {
		return nil, err
	}
	infos := e.infos(list)
	if list.Truncated {
		return infos, ErrTruncated
	}
	return infos, nil
}

// SignalIn sends a signal to a process in any session of the same principal, whether or not a
// connection owns the session. Unlike Process.Signal, it sends SIGINT, SIGQUIT and SIGTSTP to the
// process's own group even on a terminal. It returns nil if the process does not exist. If the
// connection breaks, SignalIn is not repeated, and the error is an *InterruptedError. The server
// needs the capability sessionControl.
func (e *Environment) SignalIn(ctx context.Context, session, process string, sig os.Signal) error {
	if !e.has(capControl) {
		return &UnsupportedError{"signal a process of another session", capControl}
	}
	name, err := signalName(sig)
	if err != nil {
		return err
	}
	return e.remote.signal(ctx, protocol.SignalParams{SessionID: &session, ProcessID: process, Signal: name})
}

// TerminateIn is like Process.Terminate for a process in any session of the same principal. It
// returns nil if the process does not exist or has closed. The server needs the capability
// sessionControl.
func (e *Environment) TerminateIn(ctx context.Context, session, process string, grace time.Duration) error {
	if !e.has(capControl) {
		return &UnsupportedError{"end a process of another session", capControl}
	}
	return e.remote.terminateIn(ctx, &session, process, grace)
}

// EndSession ends a session of the same principal, with everything in it, even if it has a
// connection or a lease. If there is no such session, the error is a *protocol.Error with the code
// protocol.CodeInvalidRequest. The server needs the capability sessionControl.
func (e *Environment) EndSession(ctx context.Context, session string) error {
	if !e.has(capControl) {
		return &UnsupportedError{"end a session", capControl}
	}
	_, err := e.conns.request(ctx, protocol.MethodEndSession, protocol.EndSessionParams{SessionID: session})
	return err
}
