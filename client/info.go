package client

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strings"
	"time"

	"execserver/protocol"
)

// Info describes the machine of an Environment (PROTOCOL.md, "Environment"). Paths are
// native to the machine; those that the server does not report are "".
type Info struct {
	OS      string // linux, macos, windows, or Go's name of another system
	Version string // of the server

	// Machine is the server's name in a fleet (docs/fleet.md), or "". If a gateway chose the
	// machine, it is the name of that machine.
	Machine string

	Shell     string // kind of the account's shell: bash, zsh, sh, powershell or cmd
	ShellPath string // path of the shell

	Dir     string // where the server was started; the default of Cmd.Dir
	HomeDir string
	TempDir string

	// SessionLifetime is how long the server keeps a session without a connection. It is
	// nil if the session ends with its connection, or if the server does not say.
	SessionLifetime *SessionLifetime

	// Capabilities are those that the server announces. A capability that is not in the
	// map is missing.
	Capabilities map[string]bool

	// Sandbox says what the server uses to confine processes and file operations. It is
	// nil if the server does not say.
	Sandbox *SandboxInfo

	dirGone bool // Dir is "" because the directory is gone
}

// SessionLifetime is how long a server keeps a session without a connection (PROTOCOL.md,
// "Sessions").
type SessionLifetime struct {
	Detached time.Duration // after the connection broke or was closed
	Silent   time.Duration // after the client stopped responding, as a sleeping laptop does
	MaxKeep  time.Duration // the longest lease of Environment.Keep; 0: there are none
}

// SandboxInfo describes how a server confines processes (PROTOCOL.md, "Sandbox").
type SandboxInfo struct {
	Mode   string // the operator's choice: auto, require, off or landlock
	Means  string // userNamespace, namespaces, bubblewrap, landlock or none
	Reason string // if Means is none, why
}

// wireInfo is environmentInfo on the wire, read leniently.
type wireInfo struct {
	Shell struct {
		Name string `json:"name"`
		Path string `json:"path"`
	} `json:"shell"`
	ExecutorVersion string                     `json:"executorVersion"`
	Cwd             json.RawMessage            `json:"cwd"`
	UserHomeDir     *string                    `json:"userHomeDir"`
	TempDir         *string                    `json:"tempDir"`
	PlatformOS      string                     `json:"platformOs"`
	SessionLifetime *protocol.SessionLifetime  `json:"sessionLifetime"`
	Capabilities    map[string]json.RawMessage `json:"capabilities"`
	Sandbox         json.RawMessage            `json:"sandbox"`
	Machine         json.RawMessage            `json:"machine"`
}

// has reports whether a server announces a capability. Older ones send no wireInfo.
func (w *wireInfo) has(capability string) bool {
	return w != nil && string(w.Capabilities[capability]) == "true"
}

func (w *wireInfo) info() *Info {
	i := &Info{
		OS: w.PlatformOS, Version: w.ExecutorVersion, Shell: w.Shell.Name, ShellPath: w.Shell.Path,
		Capabilities: make(map[string]bool),
	}
	_ = json.Unmarshal(w.Machine, &i.Machine) // absent, or what another server means by it
	var confines *protocol.SandboxInfo
	if json.Unmarshal(w.Sandbox, &confines) == nil { // absent, or of a kind that this client does not know
		i.Sandbox = (*SandboxInfo)(confines)
	}
	for name, value := range w.Capabilities {
		i.Capabilities[name] = string(value) == "true"
	}
	if kept := w.SessionLifetime; kept != nil {
		i.SessionLifetime = &SessionLifetime{millis(kept.DetachedMs), millis(kept.SilentMs), millis(kept.MaxKeepMs)}
	}
	var cwd *string
	i.dirGone = string(w.Cwd) == "null"
	_ = json.Unmarshal(w.Cwd, &cwd) // older servers do not send it
	for to, from := range map[*string]*string{&i.Dir: cwd, &i.HomeDir: w.UserHomeDir, &i.TempDir: w.TempDir} {
		if from != nil {
			*to = protocol.OSPathOn(i.goos(), *from)
		}
	}
	return i
}

// millis converts milliseconds of the wire.
func millis(ms uint64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/uint64(2*time.Millisecond))) * time.Millisecond
}

// goos returns Go's name of the machine's system, as far as the spelling of paths depends
// on it.
func (i *Info) goos() string {
	if i.OS == "windows" {
		return "windows"
	}
	return "linux"
}

// errDirGone says why a relative path cannot be resolved. Another directory instead could
// destroy the files in it.
var errDirGone = fmt.Errorf("%w: the directory that the environment was made in is gone; name another one", fs.ErrNotExist)

// resolve makes a path absolute on the machine. "" means errDirGone. If the server does
// not report its directory, resolve uses the home directory.
func (i *Info) resolve(name string) string {
	base := i.Dir
	if base == "" {
		base = i.HomeDir
	}
	switch {
	case i.goos() == "windows":
		if len(name) > 1 && (name[1] == ':' || strings.HasPrefix(name, `\\`)) {
			return name
		}
		if i.dirGone {
			return ""
		}
		return base + `\` + name
	case strings.HasPrefix(name, "/"):
		return path.Clean(name)
	case i.dirGone:
		return ""
	case base == "":
		base = "/"
	}
	return path.Join(base, name)
}

// uri spells an absolute path of the machine for the wire. Every server since 0.140
// accepts URIs.
func (i *Info) uri(osPath string) protocol.Path { return protocol.URIPathOn(i.goos(), osPath) }
