package server

import (
	"errors"
	"math"
	"time"

	"execserver/process"
	"execserver/protocol"
	"execserver/rpc"
)

// The methods about one process run in the process's lane, in their order of
// arrival; only reads, signals and terminate overtake a write that waits for a
// child which does not read.

// start serves process/start.
func (c *connection) start(r *rpc.Request, p protocol.Start) {
	spec, err := c.server.spec(p)
	if err != nil {
		r.Fail(err)
		return
	}
	r.Queue(p.ProcessID, false, false, func(*rpc.Lane) {
		if err := c.session.Start(p.ProcessID, spec); err != nil {
			r.Fail(err)
			return
		}
		r.Reply(protocol.StartResult{ProcessID: p.ProcessID, SandboxType: protocol.SandboxNone})
		c.session.Announce(p.ProcessID)
	})
}

// spec checks the params of process/start and makes of them what the process
// package starts.
func (s *Server) spec(p protocol.Start) (process.Spec, error) {
	invalid := func(format string, args ...any) (process.Spec, error) {
		return process.Spec{}, protocol.Errorf(protocol.CodeInvalidParams, format, args...)
	}
	dir, err := p.Cwd.Native()
	switch {
	case err != nil:
		return invalid("cwd URI `%s` is not valid on this exec-server host: %s", p.Cwd, err)
	case p.Sandbox != nil:
		return invalid("%s", errNoSandbox)
	case p.EnforceManagedNetwork, p.ManagedNetwork != nil, p.NetworkProxy != nil:
		return invalid("this exec-server cannot restrict the network of a process; " +
			"start it without enforceManagedNetwork, managedNetwork and networkProxy")
	case len(p.Argv) == 0:
		return invalid("argv must not be empty")
	}
	env := process.Environment(process.ServerEnvironment(), p.EnvPolicy, p.Env)
	if _, ok := env["SHELL"]; p.TTY && !ok {
		env["SHELL"] = loginShell().Path
	}
	return process.Spec{
		Argv:      p.Argv,
		Arg0:      p.Arg0,
		Dir:       dir,
		Env:       env,
		TTY:       p.TTY,
		PipeStdin: p.PipeStdin,
	}, nil
}

// errNoSandbox refuses every request that asks for a sandbox: to run it without
// would be to open a door.
var errNoSandbox = errors.New("this exec-server cannot enforce a sandbox; " +
	"run the client without one (danger-full-access) if this machine is one itself")

// read serves process/read. It waits for nothing but its process.
func (c *connection) read(r *rpc.Request, p protocol.Read) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		r.Go(func() {
			result, err := c.session.Read(r.Context(), p, milliseconds(p.WaitMs), r.Reserve)
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
		if err := c.session.Interrupt(p.ProcessID); err != nil {
			r.Fail(err)
			return
		}
		r.Reply(protocol.Empty{})
	})
}

// terminate serves process/terminate.
func (c *connection) terminate(r *rpc.Request, p protocol.Terminate) {
	r.Queue(p.ProcessID, true, true, func(*rpc.Lane) {
		r.Reply(protocol.TerminateResult{Running: c.session.Terminate(p.ProcessID)})
	})
}
