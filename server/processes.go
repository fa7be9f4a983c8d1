package server

import (
	"math"
	"time"

	"execserver/internal/ownership"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// processHandler serves the methods about processes; start.go has process/start. Requests
// about one process run in the lane of the process, in their order of arrival. Only those
// that read, signal or terminate overtake a write that waits for a child that does not read.
type processHandler struct{ *caller }

// read serves process/read. It waits only for its process.
func (h *processHandler) read(r *rpc.Request, p protocol.ReadParams) {
	observing := h.observing
	h.look(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		r.Go(func() {
			read := of.Read
			if observing || of != h.session {
				read = of.Peek
			}
			result, err := read(r.WaitContext(), p, milliseconds(p.WaitMs), r.Reserve)
			reply(r, result, err)
		})
	})
}

// readBackground serves process/readBackground.
func (h *processHandler) readBackground(r *rpc.Request, p protocol.ReadParams) {
	r.Queue(p.ProcessID, rpc.Urgent, func(*rpc.Lane) {
		r.Go(func() {
			result, err := h.session.ReadBackground(r.WaitContext(), p, milliseconds(p.WaitMs), r.Reserve)
			reply(r, result, err)
		})
	})
}

// milliseconds converts a wait of the wire, however large.
func milliseconds(ms *uint64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(min(*ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// write serves process/write. If the stdin of the process is full, it waits in the lane. The
// reader must not wait: the process may be blocked on its output until an acknowledgement
// arrives, and read its stdin only then.
func (h *processHandler) write(r *rpc.Request, p protocol.WriteParams) {
	serve := func(wait func(func())) (cancelled bool) {
		status, cancelled, err := h.session.Write(p, r.Context().Done(), wait)
		switch {
		case err != nil:
			r.Fail(err)
		case !cancelled:
			r.Reply(protocol.WriteResult{Status: status, Accepted: status == protocol.WriteAccepted})
		}
		return cancelled
	}
	inLane := func(lane *rpc.Lane) {
		if serve(lane.Wait) {
			r.Drop()
		}
	}
	r.Queue(p.ProcessID, rpc.Quick, func(lane *rpc.Lane) {
		switch {
		case lane != nil:
			inLane(lane)
		case serve(nil): // this is the reader
			r.Queue(p.ProcessID, rpc.Blocking, inLane)
		}
	})
}

// signal serves process/signal.
func (h *processHandler) signal(r *rpc.Request, p protocol.SignalParams) {
	h.control(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		h.auditSignal(of, p.ProcessID, p.Name())
		reply(r, protocol.Empty{}, of.Signal(p))
	})
}

// terminate serves process/terminate.
func (h *processHandler) terminate(r *rpc.Request, p protocol.TerminateParams) {
	h.control(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		h.auditSignal(of, p.ProcessID, "terminate")
		var running bool
		if p.Mode == protocol.TerminateGraceful {
			running = of.TerminateGracefully(p.ProcessID, milliseconds(p.TimeoutMs))
		} else {
			running = of.Terminate(p.ProcessID)
		}
		r.Reply(protocol.TerminateResult{Running: running})
	})
}

// closeStdin serves process/closeStdin.
func (h *processHandler) closeStdin(r *rpc.Request, p protocol.CloseStdinParams) {
	r.Queue(p.ProcessID, rpc.Quick, func(*rpc.Lane) {
		reply(r, protocol.Empty{}, h.session.CloseStdin(p.ProcessID))
	})
}

// resize serves process/resize.
func (h *processHandler) resize(r *rpc.Request, p protocol.ResizeParams) {
	r.Queue(p.ProcessID, rpc.Quick, func(*rpc.Lane) {
		reply(r, protocol.Empty{}, h.session.Resize(p))
	})
}

// wait serves process/wait. It waits only for its process, and no request waits for it.
func (h *processHandler) wait(r *rpc.Request, p protocol.WaitParams) {
	r.Queue(p.ProcessID, rpc.Urgent, func(*rpc.Lane) {
		r.Go(func() {
			var wait *time.Duration
			if p.WaitMs != nil {
				wait = new(milliseconds(p.WaitMs))
			}
			result, err := h.session.Wait(r.WaitContext(), p.ProcessID, wait)
			switch {
			case err != nil:
				r.Fail(err)
			case r.Context().Err() != nil:
				r.Drop() // the process may still run
			default:
				r.Reply(result)
			}
		})
	})
}

// snapshot serves process/snapshot.
func (h *processHandler) snapshot(r *rpc.Request, p protocol.SnapshotParams) {
	h.look(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		r.Go(func() {
			result, err := of.Snapshot(p, r.Reserve)
			reply(r, result, err)
		})
	})
}

// usage serves process/usage. It may search all processes of the system.
func (h *processHandler) usage(r *rpc.Request, p protocol.UsageParams) {
	switch {
	case !ownership.UsageSupported:
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this system does not tell what processes use", r.Method))
		return
	case h.session == nil && !p.All:
		r.Fail(noSession(r.Method + "` without `all"))
		return
	}
	r.Pool(func() {
		ask := h.session.Usage
		if p.All {
			ask = func(reserve func(int) error) (protocol.UsageResult, error) {
				return h.server.sessions.Usage(h.viewer(), reserve)
			}
		}
		result, err := ask(r.Reserve)
		reply(r, result, err)
	})
}

// list serves process/list. Some lists search all processes of the system.
func (h *processHandler) list(r *rpc.Request, p protocol.ListParams) {
	if h.session == nil && !p.All {
		r.Fail(noSession(r.Method + "` without `all"))
		return
	}
	r.Pool(func() {
		if p.All {
			list, err := h.server.sessions.ListProcesses(h.viewer(), r.Reserve)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(list)
			return
		}
		if err := r.Reserve(h.session.ListSize()); err != nil {
			r.Fail(err)
			return
		}
		r.Reply(h.session.List())
	})
}

// screen serves process/screen. It waits for the turn of its principal to interpret output.
func (h *processHandler) screen(r *rpc.Request, p protocol.ScreenParams) {
	h.look(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		r.HeavyPool(func() {
			result, err := of.Screen(r.Context(), p, r.Reserve)
			switch {
			case r.Context().Err() != nil:
				r.Drop()
			case err != nil:
				r.Fail(err)
			default:
				r.Reply(result)
			}
		})
	})
}

// control calls serve with the session that a request about a process names, if the client
// may control it.
func (h *processHandler) control(r *rpc.Request, sessionID *string, processID string, serve func(of *session.Session)) {
	find := func(id string) (*session.Session, error) {
		return h.server.sessions.Controlled(id, h.credentials(), h.viewer())
	}
	h.inSession(r, sessionID, processID, find, serve)
}

// look calls serve with the session that a request about a process names, if the client may
// observe it.
func (h *processHandler) look(r *rpc.Request, sessionID *string, processID string, serve func(of *session.Session)) {
	find := func(id string) (*session.Session, error) { return h.server.sessions.Observed(id, h.viewer()) }
	h.inSession(r, sessionID, processID, find, serve)
}

// inSession calls serve with the session that a request about a process names, in the
// process's lane. Without a name that is the session of the connection; others it finds.
func (h *processHandler) inSession(r *rpc.Request, sessionID *string, processID string,
	find func(id string) (*session.Session, error), serve func(of *session.Session),
) {
	own := h.session != nil && (sessionID == nil || *sessionID == h.session.ID)
	switch {
	case own:
		r.Queue(processID, rpc.Urgent, func(*rpc.Lane) { serve(h.session) })
	case sessionID == nil:
		r.Fail(noSession(r.Method + "` without `sessionId"))
	default:
		// The key may equal the id of a process of this connection's session. Then the two share
		// a lane, which does no harm, because neither blocks it.
		r.Queue(*sessionID+" "+processID, rpc.Urgent, func(*rpc.Lane) {
			of, err := find(*sessionID)
			if err != nil {
				r.Fail(err)
				return
			}
			serve(of)
		})
	}
}
