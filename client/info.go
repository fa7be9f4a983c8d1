package client

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"execserver/protocol"
)

// Info describes the machine of an Environment (PROTOCOL.md, "Environment").
// Paths are native there; those that the server does not tell are "".
type Info struct {
	OS      string // linux, macos, windows, …
	Version string // of the server; "" of Local

	// Shell is the account's shell: its kind (bash, zsh, sh, powershell, cmd)
	// and its path.
	Shell, ShellPath string

	Dir     string // where the server was started, and commands run unless told otherwise
	HomeDir string
	TempDir string

	// Capabilities are what the server announces.
	Capabilities map[string]bool

	dirGone bool // Dir is "" because that directory is gone
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
	Capabilities    map[string]json.RawMessage `json:"capabilities"`
}

func (w *wireInfo) info() *Info {
	i := &Info{
		OS: w.PlatformOS, Version: w.ExecutorVersion, Shell: w.Shell.Name, ShellPath: w.Shell.Path,
		Capabilities: make(map[string]bool),
	}
	for name, value := range w.Capabilities {
		i.Capabilities[name] = string(value) == "true"
	}
	var cwd *string
	i.dirGone = string(w.Cwd) == "null"
	_ = json.Unmarshal(w.Cwd, &cwd) // older servers do not tell
	for to, from := range map[*string]*string{&i.Dir: cwd, &i.HomeDir: w.UserHomeDir, &i.TempDir: w.TempDir} {
		if from != nil {
			*to = protocol.NativeOn(i.goos(), *from)
		}
	}
	return i
}

// goos is Go's name of the machine's system, where the spelling of paths
// depends on it.
func (i *Info) goos() string {
	if i.OS == "windows" {
		return "windows"
	}
	return "linux"
}

// errDirGone is why a relative path leads nowhere. To take another directory
// instead could cost somebody the files in it.
var errDirGone = fmt.Errorf("%w: the directory that the environment was made in is gone; name another one", fs.ErrNotExist)

// resolve makes a path absolute, on the machine; "" means errDirGone. Where a server
// does not tell its directory, the home is taken for it.
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

// uri spells an absolute path of the machine for the wire; every server since
// 0.140 takes URIs.
func (i *Info) uri(native string) protocol.Path { return protocol.URIPathOn(i.goos(), native) }
