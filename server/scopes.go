package server

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"execserver/internal/auth"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/protocol"
)

// needs lists for every method the scopes that allow a principal to call it. One of them
// is enough, and Full allows every method. Only this file decides what a principal may
// do.
var needs = map[string]auth.Scope{
	protocol.MethodInitialize: auth.Enter, // see mayEnter

	protocol.MethodEnvironmentInfo:       auth.Enter,
	protocol.MethodEnvironmentStatus:     auth.Enter,
	protocol.MethodEnvironmentConfigRead: auth.Enter, // reads nothing
	protocol.MethodDiscoverRoots:         auth.ReadFiles,

	protocol.MethodStart:          auth.Exec, // see mayRun and mayStartIn
	protocol.MethodWrite:          auth.Exec,
	protocol.MethodSignal:         auth.Exec,
	protocol.MethodTerminate:      auth.Exec,
	protocol.MethodCloseStdin:     auth.Exec,
	protocol.MethodResize:         auth.Exec,
	protocol.MethodTakeOver:       auth.Exec,
	protocol.MethodKeep:           auth.Exec,
	protocol.MethodEndSession:     auth.Exec,
	protocol.MethodRead:           auth.Exec | auth.Observe,
	protocol.MethodReadBackground: auth.Exec | auth.Observe,
	protocol.MethodWait:           auth.Exec | auth.Observe,
	protocol.MethodSnapshot:       auth.Exec | auth.Observe,
	protocol.MethodScreen:         auth.Exec | auth.Observe,
	protocol.MethodList:           auth.Exec | auth.Observe,
	protocol.MethodUsage:          auth.Exec | auth.Observe,
	protocol.MethodSessions:       auth.Exec | auth.Observe,
	protocol.MethodRecordings:     auth.Exec | auth.Observe, // see RecordingViewer
	protocol.MethodReadRecording:  auth.Exec | auth.Observe, // the same
	protocol.MethodWebLink:        auth.Enter,               // to do no more than with these credentials

	protocol.MethodGetMetadata:     auth.ReadFiles,
	protocol.MethodReadFile:        auth.ReadFiles,
	protocol.MethodReadDirectory:   auth.ReadFiles,
	protocol.MethodWalk:            auth.ReadFiles,
	protocol.MethodCanonicalize:    auth.ReadFiles,
	protocol.MethodJoin:            auth.ReadFiles,
	protocol.MethodParent:          auth.ReadFiles,
	protocol.MethodReadLink:        auth.ReadFiles,
	protocol.MethodWatchMissing:    auth.ReadFiles,
	protocol.MethodWatch:           auth.ReadFiles,
	protocol.MethodUnwatch:         auth.ReadFiles,
	protocol.MethodOpen:            auth.ReadFiles, // the sandbox must also allow replacing
	protocol.MethodReadBlock:       auth.ReadFiles,
	protocol.MethodClose:           auth.ReadFiles,
	protocol.MethodWriteBlock:      auth.WriteFiles,
	protocol.MethodWriteFile:       auth.WriteFiles,
	protocol.MethodCreateDirectory: auth.WriteFiles,
	protocol.MethodRemove:          auth.WriteFiles,
	protocol.MethodCopy:            auth.WriteFiles,
	protocol.MethodRename:          auth.WriteFiles,
	protocol.MethodSetMetadata:     auth.WriteFiles,
	protocol.MethodSymlink:         auth.WriteFiles,

	protocol.MethodHTTPRequest: auth.Full,
	protocol.MethodTCPOpen:     auth.Full, // see mayReach
}

// denied refuses what the credentials do not allow.
func denied(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidRequest, "these credentials do not allow %s", fmt.Sprintf(format, args...))
}

// mayCall decides about a method. A method that is not in the table requires Full.
func (c *connection) mayCall(method string) error {
	g := c.principal.Grant
	switch {
	case g == nil:
		return nil
	case !g.Allows(needs[method]):
		return denied("`%s`", method)
	case (method == protocol.MethodHTTPRequest || method == protocol.MethodTCPOpen) && g.Sandbox != nil && !g.Sandbox.Network:
		return denied("the network")
	case method == protocol.MethodWatchMissing && g.FileSandbox() != nil && !g.FileSandbox().FullRead():
		return denied("`%s`, which cannot be confined", method)
	case method == protocol.MethodTakeOver && c.session != nil && c.session.Principal != c.principal.Name:
		return denied("to take over a session of others")
	}
	return nil
}

// mayEnter decides about initialize: a principal that may only observe has no session, and
// observes one or asks for none.
func (c *connection) mayEnter(p protocol.InitializeParams) error {
	if p.ObserveSessionID == nil && !c.principal.Grant.Allows(auth.Enter&^auth.Observe) {
		return denied("a session of one's own; give an observeSessionId")
	}
	return nil
}

// harmless are the variables that a client may set although it may start only certain
// commands: no program executes their values, if those are plain. A shell that computes
// with COLUMNS would run a command substitution in it.
var harmless = []string{"TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"}

// isPlain reports whether a value has only the characters that such variables need.
func isPlain(value string) bool {
	return strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+-") == ""
}

// mayRun decides about the command and the variables of process/start.
func (c *connection) mayRun(p protocol.StartParams) error {
	g := c.principal.Grant
	if g == nil || g.Commands == nil {
		return nil
	}
	if p.Form != protocol.StartOrdinary || len(p.Argv) == 0 || p.Arg0 != nil && *p.Arg0 != p.Argv[0] || !g.Command(p.Argv) {
		argv, _ := ownership.ShortArgv(p.Argv)
		return denied("the command %q", argv)
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
	return nil
}

// mayStartIn decides about the directory of process/start, and replaces it with its path
// without links. It accesses files. The caller must close spec.DirFile.
func (c *connection) mayStartIn(spec *process.Spec) error {
	g := c.principal.Grant
	if g == nil || g.Directory == "" {
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

// makeIn returns where a sandbox may create missing names, such as protected ones; nil
// means anywhere that it makes writable. Otherwise a principal that may start only
// certain commands could create any directory, by requesting a sandbox that denies its
// name. A sandbox of the credentials bounds what the client's makes writable, and so what
// is created.
func makeIn(g *auth.Grant) []string {
	switch {
	case g == nil, g.Commands == nil, g.Sandbox != nil:
		return nil
	case g.Directory == "":
		return []string{}
	}
	return []string{g.Directory}
}

// forced combines a requested sandbox, or none, with the sandbox of the credentials: both
// apply.
func forced(by, asked *protocol.Sandbox) *protocol.Sandbox {
	if asked == nil {
		return by
	}
	both := *asked
	both.Network = by.Network && asked.Network
	both.Within = by
	return &both
}

// filePolicy returns the sandbox of a file request. nil means that none restricts the
// method.
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
	if by := c.principal.Grant.FileSandbox(); by != nil {
		policy = forced(by, policy)
	}
	return confinement(method, policy), nil
}
