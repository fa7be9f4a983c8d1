package server

import (
	"time"

	"execserver/protocol"
	"execserver/rpc"
)

// wait serves process/wait. It waits for nothing but its process, and nothing
// waits for it.
func (c *connection) wait(r *rpc.Request, p protocol.Wait) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
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
				r.Drop() // the process may run on
			default:
				r.Reply(result)
			}
		})
	})
}

// snapshot serves process/snapshot.
func (c *connection) snapshot(r *rpc.Request, p protocol.Snapshot) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		r.Go(func() {
			result, err := c.session.Snapshot(p, r.Reserve)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(result)
		})
	})
}

// listProcesses serves process/list.
func (c *connection) listProcesses(r *rpc.Request, _ struct{}) {
	r.Go(func() {
		if err := r.Reserve(c.session.ListSize()); err != nil {
			r.Fail(err)
			return
		}
		r.Reply(c.session.List())
	})
}
