package server

import (
	"math"
	"time"

	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// The methods about one process run in the process's lane, in their order of arrival.
// Only those that read, signal or terminate overtake a write that waits for a child which
// does not read.

// read serves process/read. It waits only for its process.
func (c *connection) read(r *rpc.Request, p protocol.ReadParams) {
	observing := c.observing
	c.look(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		r.Go(func() {
			read := of.Read
			if observing || of != c.session {
				read = of.Peek
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
func (c *connection) readBackground(r *rpc.Request, p protocol.ReadParams) {
	r.Queue(p.ProcessID, rpc.Urgent, func(*rpc.Lane) {
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

// write serves process/write. Where it has to wait for room, it waits in a lane. If the
// reader waited, the acknowledgements could not arrive without which a process that waits
// for room for its own output never reads its input.
func (c *connection) write(r *rpc.Request, p protocol.WriteParams) {
	serve := func(wait func(func())) (cancelled bool) {
		status, cancelled, err := c.session.Write(p, r.Context().Done(), wait)
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
func (c *connection) signal(r *rpc.Request, p protocol.SignalParams) {
	c.control(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		c.auditSignal(of, p.ProcessID, p.Name())
		done(r, of.Signal(p))
	})
}

// terminate serves process/terminate.
func (c *connection) terminate(r *rpc.Request, p protocol.TerminateParams) {
	c.control(r, p.SessionID, p.ProcessID, func(of *session.Session) {
		c.auditSignal(of, p.ProcessID, "terminate")
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
func (c *connection) closeStdin(r *rpc.Request, p protocol.CloseStdinParams) {
	r.Queue(p.ProcessID, rpc.Quick, func(*rpc.Lane) {
		done(r, c.session.CloseStdin(p.ProcessID))
	})
}

// resize serves process/resize.
func (c *connection) resize(r *rpc.Request, p protocol.ResizeParams) {
	r.Queue(p.ProcessID, rpc.Quick, func(*rpc.Lane) {
		done(r, c.session.Resize(p))
	})
}

// done answers a request whose result is empty.
func done(r *rpc.Request, err error) {
	if err != nil {
		r.Fail(err)
		return
	}
	r.Reply(protocol.Empty{})
}
