package server

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"execserver/internal/auth"
	"execserver/process"
	"execserver/protocol"
)

// needs says of every method which scopes let a principal call it; one of them is
// enough, and Full is for all. This file is the one place that decides what a
// principal may do.
var needs = map[string]auth.Scope{
	protocol.MethodInitialize: auth.Enter, // see mayEnter

	protocol.MethodEnvironmentInfo:       auth.Enter,
	protocol.MethodEnvironmentStatus:     auth.Enter,
	protocol.MethodEnvironmentConfigRead: auth.Enter, // reads nothing
	protocol.MethodDiscoverRoots:         auth.ReadFiles,

	protocol.MethodStart:          auth.Exec, // see mayStart
	protocol.MethodWrite:          auth.Exec,
	protocol.MethodSignal:         auth.Exec,
	protocol.MethodTerminate:      auth.Exec,
	protocol.MethodCloseStdin:     auth.Exec,
	protocol.MethodResize:         auth.Exec,
	protocol.MethodTakeOver:       auth.Exec,
	protocol.MethodRead:           auth.Exec | auth.Observe,
	protocol.MethodReadBackground: auth.Exec | auth.Observe,
	protocol.MethodWait:           auth.Exec | auth.Observe,
	protocol.MethodSnapshot:       auth.Exec | auth.Observe,
	protocol.MethodList:           auth.Exec | auth.Observe,

	protocol.MethodGetMetadata:     auth.ReadFiles,
	protocol.MethodReadFile:        auth.ReadFiles,
	protocol.MethodReadDirectory:   auth.ReadFiles,
	protocol.MethodWalk:            auth.ReadFiles,
	protocol.MethodCanonicalize:    auth.ReadFiles,
	protocol.MethodJoin:            auth.ReadFiles,
	protocol.MethodParent:          auth.ReadFiles,
	protocol.MethodWatchMissing:    auth.ReadFiles,
	protocol.MethodWatch:           auth.ReadFiles,
	protocol.MethodUnwatch:         auth.ReadFiles,
	protocol.MethodOpen:            auth.ReadFiles, // to replace one, the sandbox must allow
	protocol.MethodReadBlock:       auth.ReadFiles,
	protocol.MethodClose:           auth.ReadFiles,
	protocol.MethodWriteBlock:      auth.WriteFiles,
	protocol.MethodWriteFile:       auth.WriteFiles,
	protocol.MethodCreateDirectory: auth.WriteFiles,
	protocol.MethodRemove:          auth.WriteFiles,
	protocol.MethodCopy:            auth.WriteFiles,
	protocol.MethodRename:          auth.WriteFiles,

	protocol.MethodHTTPRequest: auth.Full,
}

// denied refuses what the credentials do not allow.
func denied(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidRequest, "these credentials do not allow %s", fmt.Sprintf(format, args...))
}

// mayCall decides about a method. What nobody has decided about is for those who may
// do everything.
func (c *connection) mayCall(method string) error {
	g := c.principal.Grant
	switch {
	case g == nil:
		return nil
	case !g.Allows(needs[method]):
		return denied("`%s`", method)
	case method == protocol.MethodHTTPRequest && g.Sandbox != nil && !g.Sandbox.Network:
		return denied("the network")
	case method == protocol.MethodWatchMissing && g.Files() != nil && !g.Files().FullRead():
		return denied("`%s`, which cannot be confined", method)
	case method == protocol.MethodTakeOver && c.session != nil && c.session.Principal != c.principal.Name:
		return denied("to take over a session of others")
	}
	return nil
}

// mayEnter decides about initialize: who can do nothing but to observe has no session.
func (c *connection) mayEnter(p protocol.Initialize) error {
	if p.ObserveSessionID == nil && !c.principal.Grant.Allows(auth.Enter&^auth.Observe) {
		return denied("a session of one's own; give an observeSessionId")
	}
	return nil
}

// harmless are the variables that a client may set although it may start certain
// commands only: no program does what one of them says, if its value is plain. A shell
// that computes with COLUMNS runs the command substitutions in it.
var harmless = []string{"TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"}

// isPlain reports whether a value has nothing in it but what such variables need.
func isPlain(value string) bool {
	return strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+-") == ""
}

// mayStart decides about process/start, and makes of the directory what it is without
// links; the caller closes spec.DirFile. It looks at files.
func (c *connection) mayStart(p protocol.Start, spec *process.Spec) error {
	g := c.principal.Grant
	if g == nil {
		return nil
	}
	if g.Commands != nil {
		if p.Form != protocol.StartOrdinary || p.Arg0 != nil && *p.Arg0 != p.Argv[0] || !g.Command(p.Argv) {
			return denied("the command %.200q", p.Argv)
		}
		variables := []map[string]string{p.Env}
		if p.EnvPolicy != nil {
			variables = append(variables, p.EnvPolicy.Set)
		}
		for _, set := range variables {
			for name, value := range set {
				if !slices.Contains(harmless, name) || !isPlain(value) {
					return denied("the variable %.100q", name)
				}
			}
		}
	}
	if g.Directory == "" {
		return nil
	}
	below, err := filepath.EvalSymlinks(g.Directory)
	if err != nil {
		return denied("any directory: %s", err)
	}
	opened, dir, err := openDirectory(spec.Dir)
	if err != nil {
		return denied("the directory %.200q: %s", spec.Dir, err)
	}
	if relative, err := filepath.Rel(below, dir); err != nil || !filepath.IsLocal(relative) {
		_ = opened.Close()
		return denied("the directory %.200q", spec.Dir)
	}
	spec.Dir, spec.DirFile = dir, opened
	return nil
}

// makeIn is where a sandbox may make what is missing, as its protected names are; nil:
// anywhere that it lets be written. Who may start some commands only could make any
// directory otherwise, by asking for a sandbox that denies its name. A sandbox of the
// credentials bounds what a client's lets be written, and with it what is made.
func makeIn(g *auth.Grant) []string {
	switch {
	case g == nil, g.Commands == nil, g.Sandbox != nil:
		return nil
	case g.Directory == "":
		return []string{}
	}
	return []string{g.Directory}
}

// forced is the sandbox of what asked for one, or for none, where somebody's credentials
// force another one on it: both hold.
func forced(by, asked *protocol.Sandbox) *protocol.Sandbox {
	if asked == nil {
		return by
	}
	both := *asked
	both.Network = by.Network && asked.Network
	both.Within = by
	return &both
}

// filePolicy is the sandbox of a request about files; nil means that there is none that
// keeps anything from the method.
func (c *connection) filePolicy(method string, raw json.RawMessage) (*protocol.Sandbox, error) {
	if c.server.opts.inside {
		return nil, nil
	}
	var policy *protocol.Sandbox
	if raw != nil {
		var err error
		if policy, err = protocol.DecodeSandbox(raw, true); err != nil {
			return nil, err
		}
	}
	if by := c.principal.Grant.Files(); by != nil {
		policy = forced(by, policy)
	}
	return confinement(method, policy), nil
}
