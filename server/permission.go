package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/protocol"
)

// needs lists for every method the scopes that allow a principal to call it. One of them
// is enough, and Full allows every method. All decisions about the permissions of a principal
// are in this file.
var needs = map[string]auth.Scope{
	protocol.MethodInitialize: auth.Enter, // see permitSession

	protocol.MethodEnvironmentInfo:       auth.Enter,
	protocol.MethodEnvironmentStatus:     auth.Enter,
	protocol.MethodEnvironmentConfigRead: auth.Enter, // reads no file
	protocol.MethodDiscoverRoots:         auth.ReadFiles,

	protocol.MethodStart:          auth.Exec, // see permitCommand and permitDirectory
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
	protocol.MethodRecordings:     auth.Exec | auth.Observe, // see recordingViewer
	protocol.MethodReadRecording:  auth.Exec | auth.Observe, // the same
	protocol.MethodWebLink:        auth.Enter,               // which has the rights of these credentials

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
	protocol.MethodTCPOpen:     auth.Full, // see permitNetwork and permitAddress
}

// deniedError refuses what the credentials do not allow. See caller.fail.
type deniedError struct{ what string }

func (e *deniedError) Error() string { return "these credentials do not allow " + e.what }

func denied(format string, args ...any) error { return &deniedError{fmt.Sprintf(format, args...)} }

// sessionless are the methods that a connection without a session may call: those about
// the machine and about sessions that they name (EXTENSIONS.md, "sessionList").
var sessionless = map[string]bool{
	protocol.MethodInitialize:        true, // which checks that itself
	protocol.MethodEnvironmentInfo:   true,
	protocol.MethodEnvironmentStatus: true,
	protocol.MethodSessions:          true,
	protocol.MethodList:              true, // of all sessions
	protocol.MethodUsage:             true, // the same
	protocol.MethodRecordings:        true,
	protocol.MethodReadRecording:     true,
	protocol.MethodWebLink:           true,
	protocol.MethodRead:              true, // in a session that the request names
	protocol.MethodSnapshot:          true, // the same
	protocol.MethodScreen:            true, // the same
	protocol.MethodSignal:            true, // the same
	protocol.MethodTerminate:         true, // the same
	protocol.MethodEndSession:        true,
}

// permit decides about a method, before anything looks at the params. The credentials are always
// checked, and the session once the handshake is complete.
func (c *caller) permit(method string, ready bool) error {
	switch {
	case !ready:
	case c.session == nil && !sessionless[method]:
		return noSession(method)
	case c.observing && !protocol.ForObservers(method) && method != protocol.MethodInitialize: // which checks that itself
		return protocol.Errorf(protocol.CodeInvalidRequest,
			"`%s` is refused: this connection observes session %s; call `%s` first to own it",
			method, c.session.ID, protocol.MethodTakeOver)
	}
	g := c.principal.Grant
	switch {
	case g == nil:
		return nil
	case !g.Allows(needs[method]): // a method that is not in the table requires Full
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

// permitSession decides about initialize: a principal that may only observe has no session
// of its own, and observes one or asks for none.
func (c *caller) permitSession(p protocol.InitializeParams) error {
	if p.ObserveSessionID == nil && !c.principal.Grant.Allows(auth.Enter&^auth.Observe) {
		return denied("a session of one's own; give an observeSessionId")
	}
	return nil
}

// harmless are the variables that a client may set even if it may start only certain
// commands. No program executes their values if those are plain. Other values could contain
// a command substitution, which a shell that computes with COLUMNS would run.
var harmless = []string{"TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"}

// isPlain reports whether a value has only the characters that such variables need.
func isPlain(value string) bool {
	return strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+-") == ""
}

// permitCommand decides about the command and the variables of process/start.
func (c *caller) permitCommand(p protocol.StartParams) error {
	g := c.principal.Grant
	if g == nil || g.Commands == nil {
		return nil
	}
	if p.Form != protocol.StartOrdinary || len(p.Argv) == 0 || p.Arg0 != nil && *p.Arg0 != p.Argv[0] || !g.AllowsCommand(p.Argv) {
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

// permitDirectory decides about the directory of process/start, and resolves the links in its
// path. It accesses files. The caller must close spec.DirFile.
func (c *caller) permitDirectory(spec *process.Spec) error {
	g := c.principal.Grant
	if g == nil || g.Directory == "" {
		return nil
	}
	below, err := filepath.EvalSymlinks(g.Directory)
	if err != nil {
		return denied("any directory: %s", err)
	}
	// One refusal for all: it must not disclose what is outside of the granted directory.
	refused := denied("the directory %.200q, or it does not exist", spec.Dir)
	opened, dir, err := openDirectory(spec.Dir)
	if err != nil {
		return refused
	}
	if relative, err := filepath.Rel(below, dir); err != nil || !filepath.IsLocal(relative) {
		_ = opened.Close()
		return refused
	}
	spec.Dir, spec.DirFile = dir, opened
	return nil
}

// permitNetwork refuses unix sockets to a client whose credentials force a sandbox: the
// server would open the socket outside of it.
func (c *caller) permitNetwork(network string) error {
	if g := c.principal.Grant; g != nil && g.Sandbox != nil && network == "unix" {
		return denied("a connection to a unix socket")
	}
	return nil
}

// permitAddress is the Control of a dialer. It refuses the addresses of this machine to a
// client whose credentials force a sandbox. Other servers, such as another exec-server,
// would take the connection for one of this server's user, while they recognize one that
// a confined command makes.
func (c *caller) permitAddress(_ context.Context, _, address string, _ syscall.RawConn) error {
	if g := c.principal.Grant; g == nil || g.Sandbox == nil {
		return nil
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil || c.server.admission.isLocal(to.Addr().Unmap()) {
		return denied("a connection to %s, an address of the server's machine", address)
	}
	return nil
}

// makeIn returns the directories in which a sandbox may create missing names that its policy
// protects; nil means every directory that it makes writable. A principal that may start only
// certain commands must not be able to create any directory by requesting a sandbox that
// denies its name. If the credentials have a sandbox, that one bounds the writable directories
// already.
func makeIn(g *auth.Grant) []string {
	switch {
	case g == nil, g.Commands == nil, g.Sandbox != nil:
		return nil
	case g.Directory == "":
		return []string{}
	}
	return []string{g.Directory}
}

// forced combines a requested sandbox, or nil, with the sandbox of the credentials. Both
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

// filePolicy returns the sandbox of a file request, or nil if no sandbox restricts the method.
func (c *caller) filePolicy(method string, raw json.RawMessage) (*protocol.Sandbox, error) {
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

// viewer returns which sessions the client may see: its own, and if it may observe, those
// of others.
func (c *caller) viewer() session.Viewer {
	return session.Viewer{Principal: c.principal.Name, Others: c.principal.Grant.Observes()}
}

// recordingViewer returns which recordings the client may have.
func (c *caller) recordingViewer() extension.RecordingViewer {
	return extension.RecordingViewer{Principal: c.principal.Name, Grant: c.principal.Grant}
}
