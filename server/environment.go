package server

import (
	"os"
	"path/filepath"
	"runtime"

	"execserver/filesystem"
	"execserver/internal/loginshell"
	"execserver/internal/sandbox"
	"execserver/process"
	"execserver/protocol"
	"execserver/rpc"
)

// environmentInfo describes the machine (PROTOCOL.md, "Environment").
func (s *Server) environmentInfo() protocol.EnvironmentInfo {
	info := protocol.EnvironmentInfo{
		Shell:                loginshell.Get(),
		ExecutorVersion:      s.opts.Version,
		PlatformOS:           protocol.OSName(runtime.GOOS),
		PrependPathDirs:      []protocol.Path{},
		TemporaryDirectories: []protocol.Path{},
		ProcessOwnership: &protocol.ProcessOwnership{
			Means:  string(s.ownership.Means()),
			Limits: s.ownership.Limits(),
		},
	}
	if engine := s.opts.Sandbox; engine != nil {
		means, reason := engine.Means()
		if means != sandbox.MeansNone {
			reason = "" // of what was tried before
		}
		info.Sandbox = &protocol.SandboxInfo{Mode: string(engine.Mode()), Means: string(means), Reason: reason}
	}
	cwd, err := os.Getwd()
	if err == nil {
		info.Cwd = uri(cwd)
	}
	if home, ok := homeDir(); ok {
		info.UserHomeDir = uri(home)
	}
	if dir := os.Getenv("TMPDIR"); dir != "" {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		if told := uri(dir); told != nil {
			info.TemporaryDirectories = append(info.TemporaryDirectories, *told)
		}
	}
	info.TempDir = uri(os.TempDir())
	return info
}

// homeDir is the account's home, if that is known.
func homeDir() (string, bool) {
	home, err := os.UserHomeDir()
	return home, err == nil && filepath.IsAbs(home)
}

// info describes the machine, and what can be asked for on this connection.
func (c *connection) info() protocol.EnvironmentInfo {
	info := c.server.environmentInfo()
	info.Capabilities = protocol.Capabilities{
		FsWatchMissing:        filesystem.WatchesMissing,
		EnvironmentConfigRead: true,
		FileWriteStreaming:    true,
		HTTPHeaderEnvVars:     true,
		FsRename:              true,
		FsWatch:               true,
		FsWriteFileCondition:  true,
		FsWriteFileMode:       runtime.GOOS != "windows",

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
		ProcessSignals:           process.Signals,
		ProcessSnapshot:          true,
		ProcessTerminateGraceful: process.Signals,
		ProcessWait:              true,
		SessionObserve:           c.resumable, // else there is nobody else
		StartID:                  true,
	}
	return info
}

// uri returns a path of this machine as it is told, nil if it is relative: to
// what, nobody could know.
func uri(path string) *protocol.Path {
	if !filepath.IsAbs(path) {
		return nil
	}
	p := protocol.URIPath(path)
	return &p
}

// environmentInfo serves environment/info.
func (c *connection) environmentInfo(r *rpc.Request, _ struct{}) {
	r.Reply(c.info())
}

// environmentStatus serves environment/status.
func (c *connection) environmentStatus(r *rpc.Request, _ struct{}) {
	r.Reply(protocol.EnvironmentStatus{Status: protocol.StatusReady})
}

// environmentConfigRead serves environmentConfig/read: a server has no
// configuration of its own, and says so.
func (c *connection) environmentConfigRead(r *rpc.Request, p protocol.EnvironmentConfigRead) {
	if _, err := p.Cwd.Native(); err != nil {
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
