package server

import (
	"fmt"
	"math"

	"execserver/internal/auth"
	"execserver/internal/loginshell"
	"execserver/process"
	"execserver/protocol"
	"execserver/rpc"
)

// start serves process/start.
func (c *connection) start(r *rpc.Request, p protocol.Start) {
	spec, err := c.server.spec(p, c.principal.Grant)
	if err != nil {
		c.startFailed(r, p, err)
		return
	}
	r.Queue(p.ProcessID, false, false, func(*rpc.Lane) {
		if err := c.mayStart(p, &spec); err != nil {
			c.refused(r, err)
			return
		}
		defer spec.DirFile.Close() // of nil, too
		err := c.auditStart(p, spec.Dir)
		switch {
		case err != nil:
		case p.StartID == nil:
			err = c.session.Start(p.ProcessID, spec)
		default:
			err = c.session.StartOnce(p.ProcessID, *p.StartID, spec)
		}
		if err != nil {
			c.startFailed(r, p, err)
			return
		}
		result := protocol.StartResult{ProcessID: p.ProcessID, SandboxType: protocol.SandboxNone}
		if p.Sandbox != nil || c.principal.Grant.Starts() != nil {
			result.SandboxType = protocol.SandboxLinuxSeccomp
		}
		r.Reply(result)
		c.session.Announce(p.ProcessID)
	})
}

// startFailed answers a start of which nothing came.
func (c *connection) startFailed(r *rpc.Request, p protocol.Start, err error) {
	c.log.Info("process not started", "process", p.ProcessID, "argv", fmt.Sprintf("%.1000q", p.Argv), "reason", err)
	e := c.event("not started")
	e.Process, e.Reason = p.ProcessID, err.Error()
	c.server.opts.Audit.Record(e)
	r.Fail(err)
}

// spec checks the params of process/start and makes of them what the process
// package starts.
func (s *Server) spec(p protocol.Start, g *auth.Grant) (process.Spec, error) {
	invalid := func(format string, args ...any) (process.Spec, error) {
		return process.Spec{}, protocol.Errorf(protocol.CodeInvalidParams, format, args...)
	}
	if err := s.allows(p.Form); err != nil {
		return process.Spec{}, err
	}
	dir, err := p.Cwd.Native()
	switch {
	case err != nil:
		return invalid("cwd URI `%s` is not valid on this exec-server host: %s", p.Cwd, err)
	case p.EnforceManagedNetwork, p.ManagedNetwork != nil, p.NetworkProxy != nil:
		return invalid("this exec-server cannot restrict the network of a process; " +
			"start it without enforceManagedNetwork, managedNetwork and networkProxy")
	case p.KeepDescendants && !s.opts.AllowKeepDescendants:
		return invalid("keepDescendants is not allowed here: what a process leaves running would outlive " +
			"its session; start the server with --allow-keep-descendants if that is wanted")
	case len(p.Argv) == 0:
		return invalid("argv must not be empty")
	}
	limits, err := limits(p.StartLimits)
	if err != nil {
		return process.Spec{}, err
	}
	spec := process.Spec{
		Argv:      p.Argv,
		Arg0:      p.Arg0,
		Dir:       dir,
		Env:       p.Env,
		TTY:       p.TTY,
		PipeStdin: p.PipeStdin,
		Limits:    limits,
		Drain:     p.Drain,

		KeepDescendants: p.KeepDescendants,
	}
	if p.Size != nil {
		spec.Size = *p.Size
	}
	switch p.Form {
	case protocol.StartOrdinary:
		spec.Env = process.Environment(process.ServerEnvironment(), p.EnvPolicy, p.Env)
		if p.TTY {
			loginshell.Default(spec.Env)
		}
	case protocol.StartPrepared:
		program, err := p.Program.Native()
		if err != nil {
			return invalid("program URI `%s` is not valid on this exec-server host: %s", p.Program, err)
		}
		// An absolute path is not looked up.
		spec.Argv = append([]string{program}, p.Argv[1:]...)
		spec.Arg0 = &p.Argv[0]
	}
	return spec, s.confineStart(&spec, p, g)
}

// limits takes the limits from the params of process/start.
func limits(p protocol.StartLimits) (l process.Limits, err error) {
	for _, member := range []struct {
		name  string
		value *uint64
		limit *int64
	}{
		{"timeoutMs", p.TimeoutMs, new(int64)},
		{"maxOutputBytes", p.MaxOutputBytes, &l.MaxOutputBytes},
		{process.LimitMemory, p.MemoryBytes, &l.MemoryBytes},
		{process.LimitPids, p.Pids, &l.Pids},
	} {
		switch {
		case member.value == nil:
		case *member.value == 0:
			return l, protocol.Errorf(protocol.CodeInvalidParams, "%s must be greater than zero", member.name)
		default:
			*member.limit = int64(min(*member.value, math.MaxInt64))
		}
	}
	l.Timeout = milliseconds(p.TimeoutMs)
	if p.CPUs != nil {
		if !(*p.CPUs >= minCPUs && *p.CPUs <= maxCPUs) {
			return l, protocol.Errorf(protocol.CodeInvalidParams, "cpus must be from %v to %v", minCPUs, maxCPUs)
		}
		l.CPUs = *p.CPUs
	}
	return l, nil
}

// What the kernel takes as a share of processor time: at least 1 of 100 ms.
const (
	minCPUs = 0.01
	maxCPUs = 1 << 20
)

// allows refuses the forms of process/start that are not switched on.
func (s *Server) allows(form protocol.StartForm) error {
	refused := func(name, flag string) error {
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s starts are not allowed here; the server needs %s", name, flag)
	}
	switch {
	case form == protocol.StartDirect && !s.opts.AllowDirectExec:
		return refused("direct", "--allow-direct-exec")
	case form == protocol.StartPrepared && !s.opts.AllowPreparedExec:
		return refused("prepared", "--allow-prepared-exec")
	}
	return nil
}
