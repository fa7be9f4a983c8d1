package server

import (
	"bufio"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/rpc"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// environmentHandler serves the methods about the machine and about the connection itself.
type environmentHandler struct {
	*caller
	carriesBinary bool // the transport carries binary messages
}

// machine describes the machine (PROTOCOL.md, "Environment").
func (h *environmentHandler) machine() protocol.EnvironmentInfo {
	s := h.server
	info := protocol.EnvironmentInfo{
		Shell:                loginShell(),
		ExecutorVersion:      s.opts.Version,
		PlatformOS:           protocol.OSName(runtime.GOOS),
		Machine:              s.ext.Machine,
		PrependPathDirs:      []protocol.Path{},
		TemporaryDirectories: []protocol.Path{},
		ProcessOwnership: &protocol.ProcessOwnership{
			Means:  string(s.ownership.Mechanism()),
			Limits: s.ownership.Limits(),
		},
	}
	if err := s.ownership.ScanError(); err != nil {
		info.ProcessOwnership.Reason = err.Error()
	}
	if engine := s.sandbox; engine != nil {
		means, reason := engine.Mechanism()
		if means != sandbox.MechanismNone {
			reason = "" // it explains why stronger mechanisms failed
		}
		info.Sandbox = &protocol.SandboxInfo{Mode: string(engine.Mode()), Means: string(means), Reason: reason}
	}
	cwd := s.cwd.get()
	info.Cwd = uri(cwd)
	if home, ok := homeDir(); ok {
		info.UserHomeDir = uri(home)
	}
	if dir := os.Getenv("TMPDIR"); dir != "" {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		if shown := uri(dir); shown != nil {
			info.TemporaryDirectories = append(info.TemporaryDirectories, *shown)
		}
	}
	info.TempDir = uri(os.TempDir())
	return info
}

// cwd finds the working directory of the program. A file system that hangs must not keep
// clients out: one goroutine at a time asks it, and callers stop waiting after a timeout.
type cwd struct {
	getwd func() (string, error) // os.Getwd

	mu       sync.Mutex
	answered bool
	known    string        // the last answer; "" if there is none, or the directory has been removed
	asking   chan struct{} // closed with the answer; nil while no goroutine asks
	since    time.Time     // when asking began
}

// How long the file system may take to answer: firstCwdTimeout as long as it never has, because
// clients take no answer for a directory that has been removed, otherwise cwdTimeout.
const (
	firstCwdTimeout = 5 * time.Second
	cwdTimeout      = 100 * time.Millisecond
)

// get returns the directory, or "" if it is unknown or has been removed.
func (c *cwd) get() string {
	c.mu.Lock()
	if c.asking == nil {
		c.asking, c.since = make(chan struct{}), time.Now()
		go c.ask() // ends with the answer
	}
	asking, patience := c.asking, cwdTimeout-time.Since(c.since)
	if !c.answered {
		patience = firstCwdTimeout - time.Since(c.since)
	}
	c.mu.Unlock()
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-asking:
		case <-timer.C:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

func (c *cwd) ask() {
	dir, _ := c.getwd()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered, c.known = true, dir
	close(c.asking)
	c.asking = nil
}

// homeDir returns the account's home directory, if known.
func homeDir() (string, bool) {
	home, err := os.UserHomeDir()
	return home, err == nil && filepath.IsAbs(home)
}

// describe describes the machine and the capabilities of this connection.
func (h *environmentHandler) describe() protocol.EnvironmentInfo {
	info := h.machine()
	if h.resumable { // otherwise the session ends with its connection
		info.SessionLifetime = new(h.server.sessions.Lifetime())
	}
	confines := h.confinesAll()
	info.Capabilities = protocol.Capabilities{
		FsWatchMissing:        filesystem.CanWatchMissing,
		EnvironmentConfigRead: true,
		FileWriteStreaming:    true,
		HTTPHeaderEnvVars:     true,

		CapabilityDiscoverySandbox:                  confines,
		SandboxedFileStreaming:                      confines,
		LinuxRootWritePreservesDevices:              confines,
		LinuxApprovedRootWritePreservesRestrictions: confines,

		FsMetadata:           runtime.GOOS != "windows",
		BinaryFrames:         h.carriesBinary,
		Compress:             h.carriesBinary,
		FsRename:             true,
		FsWatch:              true,
		FsWriteFileCondition: true,
		FsWriteFileMode:      runtime.GOOS != "windows",
		FsWriteFileReplace:   filesystem.CanReplace,

		HTTPRequestCancel:        true,
		ProcessAck:               true,
		ProcessCloseStdin:        true,
		ProcessDirectExec:        h.server.opts.AllowDirectExec,
		ProcessDrain:             true,
		ProcessEvents:            true,
		ProcessIO:                true,
		ProcessLimits:            true,
		ProcessList:              true,
		ProcessPreparedExec:      h.server.opts.AllowPreparedExec,
		ProcessReadBackground:    true,
		ProcessResize:            process.Terminals,
		ProcessScreen:            process.Terminals,
		ProcessSignals:           process.Signals,
		ProcessSnapshot:          true,
		ProcessTerminateGraceful: process.Signals,
		ProcessUsage:             ownership.UsageSupported,
		ProcessWait:              true,
		Recordings:               h.server.ext.Recorder != nil,
		SessionObserve:           h.resumable, // otherwise nobody else can connect
		SessionControl:           h.resumable,
		SessionKeep:              h.leases() == nil,
		SessionList:              h.resumable,
		SessionRead:              h.resumable,
		StartID:                  true,
		TCPOpen:                  true,
		WebLink:                  h.server.servesPage(),
	}
	return info
}

// confinesAll reports whether the server can enforce every policy that is valid. Landlock
// alone cannot.
func (h *environmentHandler) confinesAll() bool {
	s := h.server
	if s.sandbox == nil {
		return false
	}
	means, _ := s.sandbox.Mechanism()
	return means != sandbox.MechanismNone && means != sandbox.MechanismLandlock
}

// uri returns a path of this machine for the wire. It returns nil if the path is
// relative, because a client could not resolve it.
func uri(path string) *protocol.Path {
	if !filepath.IsAbs(path) {
		return nil
	}
	p := protocol.URIPath(path)
	return &p
}

// info serves environment/info.
func (h *environmentHandler) info(r *rpc.Request, _ protocol.NoParams) {
	r.Reply(h.describe())
}

// status serves environment/status.
func (h *environmentHandler) status(r *rpc.Request, _ protocol.NoParams) {
	r.Reply(protocol.EnvironmentStatus{Status: protocol.StatusReady})
}

// configRead serves environmentConfig/read. The server has no configuration of this kind, so
// the answer has no layers.
func (h *environmentHandler) configRead(r *rpc.Request, p protocol.EnvironmentConfigReadParams) {
	if _, err := p.Cwd.OSPath(); err != nil {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "%s", err))
		return
	}
	none := protocol.ConfigLayers{Layers: []protocol.ConfigLayer{}}
	config := protocol.EnvironmentConfig{Config: none, Requirements: none}
	if home, ok := homeDir(); ok {
		config.UserHomeDir = uri(home)
		config.CodexHomeDir = uri(filepath.Join(home, ".codex"))
	}
	if dir := uri(os.Getenv("CODEX_HOME")); dir != nil {
		config.CodexHomeDir = dir
	}
	if name, err := os.Hostname(); err == nil {
		config.Hostname = &name
	}
	r.Reply(config)
}

// loginShell returns the account's shell, or one from the search path if that is unusable.
// Clients know only some names and use a shell of their own machine for others, so loginShell
// reports a POSIX shell with another name as "sh".
var loginShell = sync.OnceValue(func() protocol.Shell {
	if runtime.GOOS == "windows" {
		return windowsShell()
	}
	if path := accountShell(); usableShell(path) {
		return protocol.Shell{Name: shellName(path), Path: path}
	}
	for _, name := range []string{"bash", "zsh", "sh"} {
		if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
			return protocol.Shell{Name: name, Path: path}
		}
	}
	return protocol.Shell{Name: "sh", Path: "/bin/sh"}
})

// setDefaultShell sets SHELL in the environment of a process on a terminal if it is missing,
// because programs on a terminal start the shell that SHELL names.
func setDefaultShell(env map[string]string) {
	if _, ok := env["SHELL"]; !ok {
		env["SHELL"] = loginShell().Path
	}
}

func windowsShell() protocol.Shell {
	for _, name := range []string{"pwsh", "powershell"} {
		if path, err := exec.LookPath(name); err == nil {
			return protocol.Shell{Name: "powershell", Path: path}
		}
	}
	return protocol.Shell{Name: "cmd", Path: os.Getenv("ComSpec")}
}

func shellName(path string) string {
	switch name := filepath.Base(path); name {
	case "bash", "zsh":
		return name
	}
	return "sh"
}

// usableShell refuses the programs that keep an account from logging in, and shells that
// do not understand the clients' commands.
func usableShell(path string) bool {
	switch filepath.Base(path) {
	case "bash", "zsh", "sh", "dash", "ash", "ksh", "mksh", "busybox":
	default:
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// accountShell finds the account in the user database, because package user does not
// report the shell.
func accountShell() string {
	account, err := user.Current()
	if err != nil {
		return ""
	}
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && fields[2] == account.Uid {
			return fields[6]
		}
	}
	return ""
}
