package client

import (
	"maps"
	"strings"

	"execserver/protocol"
)

// params returns the params of process/start, without the id.
func (c *Cmd) params() *startRequest {
	s := &startRequest{dir: c.env.Info().resolve(c.Dir)}
	s.Argv = append([]string{c.Path}, c.Args[min(1, len(c.Args)):]...)
	if len(c.Args) > 0 && c.Args[0] != c.Path {
		s.Arg0 = &c.Args[0]
	}
	s.Env = make(map[string]string, len(c.Env))
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		s.Env[name] = value
	}
	switch {
	case c.EnvPolicy != nil:
		s.EnvPolicy = wholePolicy(*c.EnvPolicy)
	case c.Env == nil:
		s.EnvPolicy = wholePolicy(*InheritAll())
		if c.Dir != "" && c.env.Info().OS != "windows" {
			s.Env["PWD"] = s.dir
		}
	}
	s.PipeStdin = c.stdin || c.Stdin != nil
	if c.TTY != nil {
		s.TTY = true
		size := *c.TTY
		if size.Rows == 0 || size.Cols == 0 {
			size = Size{Rows: 24, Cols: 80}
		}
		s.Size = &size
		c.p.tty = true
	}
	if c.env.has(capDrain) && !c.LeaveBackground {
		s.Drain = protocol.DrainEOF // Wait waits for all output, as in os/exec
	}
	s.StartLimits = wireLimits(c.Limits)
	if c.Sandbox != nil {
		s.Sandbox = c.Sandbox.wire(c.env.Info(), s.dir)
	}
	if c.ToolCallID != "" {
		s.Metadata = &protocol.Metadata{ToolCallID: &c.ToolCallID}
	}
	return s
}

// wireLimits converts limits for the wire.
func wireLimits(l Limits) (w protocol.StartLimits) {
	set := func(to **uint64, n int64) {
		if n > 0 {
			*to = new(uint64(n))
		}
	}
	if l.Timeout > 0 {
		set(&w.TimeoutMs, max(1, l.Timeout.Milliseconds()))
	}
	set(&w.MaxOutputBytes, l.MaxOutputBytes)
	set(&w.MemoryBytes, l.MemoryBytes)
	set(&w.Pids, l.Pids)
	if l.CPUs > 0 {
		w.CPUs = &l.CPUs
	}
	return w
}

// wholePolicy replaces nil where the wire does not allow null.
func wholePolicy(p EnvPolicy) *EnvPolicy {
	if p.Exclude == nil {
		p.Exclude = []string{}
	}
	if p.IncludeOnly == nil {
		p.IncludeOnly = []string{}
	}
	p.Set = maps.Clone(p.Set)
	if p.Set == nil {
		p.Set = map[string]string{}
	}
	return &p
}
