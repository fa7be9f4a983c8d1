package server

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/rpc"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// environmentInfo describes the machine (PROTOCOL.md, "Environment").
func (s *Server) environmentInfo() protocol.EnvironmentInfo {
	info := protocol.EnvironmentInfo{
		Shell:                loginShell(),
		ExecutorVersion:      s.opts.Version,
		PlatformOS:           protocol.OSName(runtime.GOOS),
		Machine:              s.opts.Internal.Machine,
		PrependPathDirs:      []protocol.Path{},
		TemporaryDirectories: []protocol.Path{},
		ProcessOwnership: &protocol.ProcessOwnership{
			Means:  string(s.ownership.Means()),
			Limits: s.ownership.Limits(),
		},
	}
	if err := s.ownership.Blind(); err != nil {
		info.ProcessOwnership.Reason = err.Error()
	}
	if engine := s.sandbox; engine != nil {
		means, reason := engine.Means()
		if means != sandbox.MeansNone {
			reason = "" // why means tried before failed
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

// cwd finds the directory of the program. A file system that hangs there must not keep
// everybody out: only one goroutine asks it at a time, and the others go on with what is known.
type cwd struct {
	mu     sync.Mutex
	known  string        // "" if it is unknown, or gone
	asking chan struct{} // closed with the answer; nil if nobody asks
	since  time.Time
}

// cwdTimeout is how long the file system may take to answer.
const cwdTimeout = 100 * time.Millisecond

// get returns the directory, or "" if it is unknown, or gone.
func (c *cwd) get() string {
	c.mu.Lock()
	if c.asking == nil {
		c.asking, c.since = make(chan struct{}), time.Now()
		go c.ask() // ends with the answer
	}
	asking, patience := c.asking, cwdTimeout-time.Since(c.since)
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
	dir, _ := os.Getwd()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = dir
	close(c.asking)
	c.asking = nil
}

// homeDir returns the account's home directory, if known.
func homeDir() (string, bool) {
	home, err := os.UserHomeDir()
	return home, err == nil && filepath.IsAbs(home)
}

// info describes the machine and the capabilities of this connection.
func (c *connection) info() protocol.EnvironmentInfo {
	info := c.server.environmentInfo()
	if c.resumable { // otherwise a session ends with its connection
		info.SessionLifetime = new(c.server.sessions.Lifetime())
	}
	confines := c.server.confinesAll()
	info.Capabilities = protocol.Capabilities{
		FsWatchMissing:        filesystem.WatchesMissing,
		EnvironmentConfigRead: true,
		FileWriteStreaming:    true,
		HTTPHeaderEnvVars:     true,

		CapabilityDiscoverySandbox:                  confines,
		SandboxedFileStreaming:                      confines,
		LinuxRootWritePreservesDevices:              confines,
		LinuxApprovedRootWritePreservesRestrictions: confines,

		FsMetadata:           runtime.GOOS != "windows",
		BinaryFrames:         c.rpc.CarriesBinary(),
		Compress:             c.rpc.CarriesBinary(),
		FsRename:             true,
		FsWatch:              true,
		FsWriteFileCondition: true,
		FsWriteFileMode:      runtime.GOOS != "windows",
		FsWriteFileReplace:   filesystem.Replaces,

		HTTPRequestCancel:        true,
		ProcessAck:               true,
		ProcessCloseStdin:        true,
		ProcessDirectExec:        c.server.opts.AllowDirectExec,
		ProcessDrain:             true,
		ProcessEvents:            true,
		ProcessIO:                true,
		ProcessLimits:            true,
		ProcessList:              true,
		ProcessPreparedExec:      c.server.opts.AllowPreparedExec,
		ProcessReadBackground:    true,
		ProcessResize:            process.Terminals,
		ProcessScreen:            process.Terminals,
		ProcessSignals:           process.Signals,
		ProcessSnapshot:          true,
		ProcessTerminateGraceful: process.Signals,
		ProcessUsage:             ownership.UsageKnown,
		ProcessWait:              true,
		Recordings:               c.server.opts.Internal.Recorder != nil,
		SessionObserve:           c.resumable, // otherwise nobody else can connect
		SessionControl:           c.resumable,
		SessionKeep:              c.keeps() == nil,
		SessionList:              c.resumable,
		SessionRead:              c.resumable,
		StartID:                  true,
		TCPOpen:                  true,
		WebLink:                  c.server.servesPage(),
	}
	return info
}

// confinesAll reports whether the server can enforce every policy that is valid. Landlock
// alone cannot.
func (s *Server) confinesAll() bool {
	if s.sandbox == nil {
		return false
	}
	means, _ := s.sandbox.Means()
	return means != sandbox.MeansNone && means != sandbox.MeansLandlock
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

// environmentInfo serves environment/info.
func (c *connection) environmentInfo(r *rpc.Request, _ protocol.NoParams) {
	r.Reply(c.info())
}

// environmentStatus serves environment/status.
func (c *connection) environmentStatus(r *rpc.Request, _ protocol.NoParams) {
	r.Reply(protocol.EnvironmentStatus{Status: protocol.StatusReady})
}

// environmentConfigRead serves environmentConfig/read. The server has no such
// configuration, and answers that.
func (c *connection) environmentConfigRead(r *rpc.Request, p protocol.EnvironmentConfigReadParams) {
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
