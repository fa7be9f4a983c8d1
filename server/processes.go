package server

import (
	"math"
	"time"

	"execserver/protocol"
	"execserver/rpc"
)

// The methods about one process run in the process's lane, in their order of
// arrival; only those that look, signal or terminate overtake a write that waits
// for a child which does not read.

// read serves process/read. It waits for nothing but its process.
func (c *connection) read(r *rpc.Request, p protocol.Read) {
	observing := c.observing
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		r.Go(func() {
			read := c.session.Read
			if observing {
				read = c.session.Peek
			}
			result, err := read(r.WaitContext(), p, milliseconds(p.WaitMs), r.Reserve)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(result)
		})
	})
}

// readBackground serves process/readBackground.
func (c *connection) readBackground(r *rpc.Request, p protocol.Read) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		r.Go(func() {
			result, err := c.session.ReadBackground(r.WaitContext(), p, milliseconds(p.WaitMs), r.Reserve)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(result)
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

// write serves process/write.
func (c *connection) write(r *rpc.Request, p protocol.Write) {
	quick := c.session.CanWrite(p.ProcessID, len(p.Chunk))
	r.Queue(p.ProcessID, false, quick, func(lane *rpc.Lane) {
		status, cancelled := c.session.Write(p, r.Context().Done(), lane.Wait)
		if cancelled {
			r.Drop()
			return
		}
		r.Reply(protocol.WriteResult{Status: status, Accepted: status == protocol.WriteAccepted})
	})
}

// signal serves process/signal.
func (c *connection) signal(r *rpc.Request, p protocol.Signal) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		c.auditSignal(p.ProcessID, p.Name())
		done(r, c.session.Signal(p))
	})
}

// terminate serves process/terminate.
func (c *connection) terminate(r *rpc.Request, p protocol.Terminate) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		c.auditSignal(p.ProcessID, "terminate")
		var running bool
		if p.Mode == protocol.TerminateGraceful {
			running = c.session.TerminateGracefully(p.ProcessID, milliseconds(p.TimeoutMs))
		} else {
			running = c.session.Terminate(p.ProcessID)
		}
		r.Reply(protocol.TerminateResult{Running: running})
	})
}

// closeStdin serves process/closeStdin.
func (c *connection) closeStdin(r *rpc.Request, p protocol.CloseStdin) {
	r.Queue(p.ProcessID, false, true, func(*rpc.Lane) {
		done(r, c.session.CloseStdin(p.ProcessID))
	})
}

// resize serves process/resize.
func (c *connection) resize(r *rpc.Request, p protocol.Resize) {
	r.Queue(p.ProcessID, false, true, func(*rpc.Lane) {
		done(r, c.session.Resize(p))
	})
}

// done answers a request that has nothing to say but an error.
func done(r *rpc.Request, err error) {
	if err != nil {
		r.Fail(err)
		return
	}
	r.Reply(protocol.Empty{})
}
