package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/rpc"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// maxStarting bounds the starts in progress; a session may have half of them. Each start
// occupies a thread while it looks for its program and directory, forever if the file system
// hangs, and the Go runtime ends a program with 10,000 threads.
const maxStarting = 1024

// start serves process/start.
func (h *processHandler) start(r *rpc.Request, p protocol.StartParams) {
	begin := time.Now()
	r.Queue(p.ProcessID, rpc.Blocking, func(*rpc.Lane) {
		// The permission comes before any work on the params. A directory of the
		// credentials is last, because to compare it takes file operations.
		if err := h.permitCommand(p); err != nil {
			h.fail(r, err)
			return
		}
		spec, err := h.spec(p)
		if err != nil {
			h.startFailed(r, p, err)
			return
		}
		if err := h.server.starting.Acquire(r.Context(), h.session.ID); err != nil {
			r.Drop()
			return
		}
		defer h.server.starting.Release(h.session.ID)
		if err := h.permitDirectory(&spec); err != nil {
			h.fail(r, err)
			return
		}
		defer spec.DirFile.Close() // it may be nil
		startID := ""
		if p.StartID != nil {
			startID = *p.StartID
		}
		err = h.auditStart(p, spec.Dir)
		if err == nil {
			if h.server.sandbox != nil {
				sandbox.ReserveThreads() // not before, because most servers are idle until their first command
			}
			err = h.session.Start(r.Context(), p.ProcessID, startID, spec)
		}
		if gone := context.Cause(r.Context()); gone != nil && errors.Is(err, gone) {
			r.Drop() // it has waited for an earlier start, which goes on
			return
		}
		if err != nil {
			h.startFailed(r, p, err)
			return
		}
		h.server.counters.starts.Add(time.Since(begin))
		result := protocol.StartResult{ProcessID: p.ProcessID, SandboxType: protocol.SandboxNone}
		if p.Sandbox != nil || h.principal.Grant.StartSandbox() != nil {
			result.SandboxType = protocol.SandboxLinuxSeccomp
		}
		r.Reply(result)
		h.session.Announce(p.ProcessID)
	})
}

// startFailed answers a failed start.
func (h *processHandler) startFailed(r *rpc.Request, p protocol.StartParams, err error) {
	err = protocol.AsError(err) // whose text is bounded
	argv, _ := ownership.ShortArgv(p.Argv)
	h.log.Info("process not started", "processId", p.ProcessID, "argv", fmt.Sprintf("%q", argv), "reason", err)
	h.server.counters.failed.Add(failureOf(err))
	e := h.event("not started")
	e.Process, e.Reason = p.ProcessID, err.Error()
	h.server.audit.Record(e)
	r.Fail(err)
}

// spec checks the params of process/start and converts them for the process package.
func (h *processHandler) spec(p protocol.StartParams) (process.Spec, error) {
	invalid := func(format string, args ...any) (process.Spec, error) {
		return process.Spec{}, protocol.Errorf(protocol.CodeInvalidParams, format, args...)
	}
	if err := h.allows(p.Form); err != nil {
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
		NoDirHint: h.server.opts.NoDirectoryHint,
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
	return spec, h.confine(&spec, p)
}

// confine adds the sandbox of process/start, or of the client's credentials, to a
// start.
func (h *processHandler) confine(spec *process.Spec, p protocol.StartParams) error {
	engine, g := h.server.sandbox, h.principal.Grant
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
	spec.Asked = policy != nil
	switch {
	case required && (policy == nil || policy.FullWrite()):
		return protocol.Errorf(protocol.CodeInvalidParams, "this server starts nothing that may write everywhere; request a sandbox that restricts writes")
	case policy == nil || !policy.Enforces():
		return nil
	case engine == nil:
		return protocol.Errorf(protocol.CodeInvalidParams, "%s", &noSandbox)
	case policy.Network && !policy.FullWrite():
		if err := h.server.admission.checkNetwork(); err != nil {
			return protocol.Errorf(protocol.CodeInvalidParams, "%s", err)
		}
	}
	context := sandbox.Context{Cwd: spec.Dir, TmpDir: spec.Env["TMPDIR"], MakeIn: makeIn(g)}
	spec.Sandbox = func() (*sandbox.Confinement, error) {
		h.server.counters.confined.Add(ConfinedProcess)
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
func (h *processHandler) allows(form protocol.StartForm) error {
	refused := func(name string) error {
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s starts are not allowed here; the server's operator can allow them", name)
	}
	switch {
	case form == protocol.StartDirect && !h.server.opts.AllowDirectExec:
		return refused("direct")
	case form == protocol.StartPrepared && !h.server.opts.AllowPreparedExec:
		return refused("prepared")
	}
	return nil
}
