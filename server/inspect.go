package server

import (
	"time"

	"execserver/internal/ownership"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// wait serves process/wait. It waits only for its process, and no request waits for it.
func (c *connection) wait(r *rpc.Request, p protocol.WaitParams) {
	r.Queue(p.ProcessID, rpc.Urgent, func(*rpc.Lane) {
		r.Go(func() {
			var wait *time.Duration
			if p.WaitMs != nil {
				wait = new(milliseconds(p.WaitMs))
			}
			result, err := c.session.Wait(r.WaitContext(), p.ProcessID, wait)
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
func (c *connection) snapshot(r *rpc.Request, p protocol.SnapshotParams) {
	c.look(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		r.Go(func() {
			result, err := of.Snapshot(p, r.Reserve)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(result)
		})
	})
}

// usage serves process/usage. It may search all processes of the system.
func (c *connection) usage(r *rpc.Request, p protocol.UsageParams) {
	switch {
	case !ownership.UsageKnown:
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this system does not tell what processes use", r.Method))
		return
	case c.session == nil && !p.All:
		r.Fail(c.noSession(r.Method + "` without `all"))
		return
	}
	r.Pool(func() {
		ask := c.session.Usage
		if p.All {
			ask = func(reserve func(int) error) (protocol.UsageResult, error) {
				return c.server.sessions.Usage(c.viewer(), reserve)
			}
		}
		result, err := ask(r.Reserve)
		if err != nil {
			r.Fail(err)
			return
		}
		r.Reply(result)
	})
}

// listProcesses serves process/list. Some lists search all processes of the system.
func (c *connection) listProcesses(r *rpc.Request, p protocol.ListParams) {
	if c.session == nil && !p.All {
		r.Fail(c.noSession(r.Method + "` without `all"))
		return
	}
	r.Pool(func() {
		if p.All {
			list, err := c.server.sessions.ListProcesses(c.viewer(), r.Reserve)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(list)
			return
		}
		if err := r.Reserve(c.session.ListSize()); err != nil {
			r.Fail(err)
			return
		}
		r.Reply(c.session.List())
	})
}
