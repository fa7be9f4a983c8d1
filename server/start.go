package server

import (
	"fmt"
	"math"
	"time"

	"execserver/internal/auth"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/rpc"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// maxStarting is how many starts may be under way at the same time, half of them for one
// session. Each has a thread while it looks for its program and directory, which may be on a
// file system that hangs, and a Go program with 10,000 threads is ended.
const maxStarting = 1024

// start serves process/start.
func (c *connection) start(r *rpc.Request, p protocol.StartParams) {
	begin := time.Now()
	r.Queue(p.ProcessID, rpc.Blocking, func(*rpc.Lane) {
		// The permission comes before any work on the params. A directory of the
		// credentials is last, because to compare it takes file operations.
		if err := c.mayRun(p); err != nil {
			c.refused(r, err)
			return
		}
		spec, err := c.server.spec(p, c.principal.Grant)
		if err != nil {
			c.startFailed(r, p, err)
			return
		}
		if err := c.server.starting.Acquire(r.Context(), c.session.ID); err != nil {
			r.Drop()
			return
		}
		defer c.server.starting.Release(c.session.ID)
		if err := c.mayStartIn(&spec); err != nil {
			c.refused(r, err)
			return
		}
		defer spec.DirFile.Close() // nil is fine, too
		startID := ""
		if p.StartID != nil {
			startID = *p.StartID
		}
		err = c.auditStart(p, spec.Dir)
		if err == nil {
			if c.server.sandbox != nil {
				sandbox.ReserveThreads() // now, because most servers wait long for their first command
			}
			err = c.session.Start(r.Context(), p.ProcessID, startID, spec)
		}
		if err != nil {
			c.startFailed(r, p, err)
			return
		}
		c.server.counters.starts.Add(time.Since(begin))
		result := protocol.StartResult{ProcessID: p.ProcessID, SandboxType: protocol.SandboxNone}
		if p.Sandbox != nil || c.principal.Grant.StartSandbox() != nil {
			result.SandboxType = protocol.SandboxLinuxSeccomp
		}
		r.Reply(result)
		c.session.Announce(p.ProcessID)
	})
}

// startFailed answers a failed start.
func (c *connection) startFailed(r *rpc.Request, p protocol.StartParams, err error) {
	err = protocol.AsError(err) // which is short
	argv, _ := ownership.ShortArgv(p.Argv)
	c.log.Info("process not started", "processId", p.ProcessID, "argv", fmt.Sprintf("%q", argv), "reason", err)
	c.server.counters.failed.Add(failureOf(err))
	e := c.event("not started")
	e.Process, e.Reason = p.ProcessID, err.Error()
	c.server.audit.Record(e)
	r.Fail(err)
}

// spec checks the params of process/start and converts them for the process package.
func (s *Server) spec(p protocol.StartParams, g *auth.Grant) (process.Spec, error) {
	invalid := func(format string, args ...any) (process.Spec, error) {
		return process.Spec{}, protocol.Errorf(protocol.CodeInvalidParams, format, args...)
	}
	if err := s.allows(p.Form); err != nil {
		return process.Spec{}, err
	}
	dir, err := p.Cwd.OSPath()
	switch {
	case err != nil:
		return invalid("cwd URI `%s` is not valid on this exec-server host: %s", p.Cwd, err)
	case p.EnforceManagedNetwork, p.ManagedNetwork != nil, p.NetworkProxy != nil:
		return invalid("this exec-server cannot restrict the network of a process; " +
			"start it without enforceManagedNetwork, managedNetwork and networkProxy")
	case len(p.Argv) == 0:
		return invalid("argv must not be empty")
	}
	limits, err := limits(p.StartLimits)
	if err != nil {
		return process.Spec{}, err
	}
	variables := []map[string]string{p.Env}
	if p.EnvPolicy != nil {
		variables = append(variables, p.EnvPolicy.Set)
	}
	if err := process.CheckSize(p.Argv, p.Arg0, variables...); err != nil {
		return process.Spec{}, err
	}
	spec := process.Spec{
		Argv:      p.Argv,
		Arg0:      p.Arg0,
		Dir:       dir,
		NoDirHint: s.opts.NoDirectoryHint,
		Env:       p.Env,
		TTY:       p.TTY,
		PipeStdin: p.PipeStdin,
		Limits:    limits,
		Drain:     p.Drain,
	}
	if p.Size != nil {
		spec.Size = *p.Size
	}
	switch p.Form {
	case protocol.StartOrdinary:
		spec.Env, err = process.Environment(process.ServerEnvironment(), p.EnvPolicy, p.Env)
		if err != nil {
			return process.Spec{}, err
		}
		if p.TTY {
			setDefaultShell(spec.Env)
		}
	case protocol.StartPrepared:
		program, err := p.Program.OSPath()
		if err != nil {
			return invalid("program URI `%s` is not valid on this exec-server host: %s", p.Program, err)
		}
		// An absolute path is not looked up.
		spec.Argv = append([]string{program}, p.Argv[1:]...)
		spec.Arg0 = &p.Argv[0]
	}
	return spec, s.confineStart(&spec, p, g)
}

// confineStart adds the sandbox of process/start, or of the client's credentials, to a
// start.
func (s *Server) confineStart(spec *process.Spec, p protocol.StartParams, g *auth.Grant) error {
	engine := s.sandbox
	required := engine != nil && engine.Mode() == sandbox.ModeRequire
	var policy *protocol.Sandbox
	if p.Sandbox != nil {
		var err error
		if policy, err = protocol.DecodeSandbox(p.Sandbox, false); err != nil {
			return err
		}
	}
	if by := g.StartSandbox(); by != nil {
		policy = forced(by, policy)
	}
	switch {
	case required && (policy == nil || policy.FullWrite()):
		return protocol.Errorf(protocol.CodeInvalidParams, "this server starts nothing that may write everywhere; request a sandbox that restricts writes")
	case policy == nil:
		return nil
	case policy.Enforces() && engine == nil:
		return protocol.Errorf(protocol.CodeInvalidParams, "%s", &noSandbox)
	case policy.Network && !policy.FullWrite():
		if err := s.checkNetwork(); err != nil {
			return protocol.Errorf(protocol.CodeInvalidParams, "%s", err)
		}
	}
	context := sandbox.Context{Cwd: spec.Dir, TmpDir: spec.Env["TMPDIR"], MakeIn: makeIn(g)}
	spec.Sandbox = func() (*sandbox.Confinement, error) {
		if !policy.Enforces() {
			return nil, nil
		}
		s.counters.confined.Add(ConfinedProcess)
		return engine.Confine(policy, context)
	}
	return nil
}

// limits converts the limits of process/start.
func limits(p protocol.StartLimits) (l process.Limits, err error) {
	for _, member := range []struct {
		name  string
		value *uint64
		limit *int64
	}{
		{"timeoutMs", p.TimeoutMs, new(int64)}, // only checked here
		{"maxOutputBytes", p.MaxOutputBytes, &l.MaxOutputBytes},
		{ownership.LimitMemory, p.MemoryBytes, &l.MemoryBytes},
		{ownership.LimitPids, p.Pids, &l.Pids},
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

// The shares of processor time that the kernel accepts: at least 1 of 100 ms.
const (
	minCPUs = 0.01
	maxCPUs = 1 << 20
)

// allows refuses the forms of process/start that the server's options do not allow.
func (s *Server) allows(form protocol.StartForm) error {
	refused := func(name string) error {
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s starts are not allowed here; the server's operator can allow them", name)
	}
	switch {
	case form == protocol.StartDirect && !s.opts.AllowDirectExec:
		return refused("direct")
	case form == protocol.StartPrepared && !s.opts.AllowPreparedExec:
		return refused("prepared")
	}
	return nil
}
