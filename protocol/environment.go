package protocol

import "encoding/json"

// Methods about the machine that the server runs on (PROTOCOL.md,
// "Environment").
const (
	MethodEnvironmentInfo   = "environment/info"
	MethodEnvironmentStatus = "environment/status"
)

// EnvironmentInfo describes the machine. Shell is required by clients; every
// path but Shell.Path is a URI.
type EnvironmentInfo struct {
	Shell                Shell        `json:"shell"`
	ExecutorVersion      string       `json:"executorVersion"`
	Cwd                  *Path        `json:"cwd"` // null when the directory is gone
	UserHomeDir          *Path        `json:"userHomeDir,omitempty"`
	PlatformOS           string       `json:"platformOs"` // linux, macos, windows, …
	PrependPathDirs      []Path       `json:"prependPathDirs"`
	TemporaryDirectories []Path       `json:"temporaryDirectories"`
	TempDir              *Path        `json:"tempDir,omitempty"`
	Capabilities         Capabilities `json:"capabilities"`
}

// Shell is the account's login shell. Clients know the names zsh, bash, sh,
// powershell and cmd.
type Shell struct {
	Name string `json:"name"`
	Path string `json:"path"` // native
}

// Capabilities are announced only when they work; an absent flag is false.
type Capabilities struct{}

// EnvironmentStatus is the answer to environment/status.
type EnvironmentStatus struct {
	Status string `json:"status"`
}

// StatusReady is the only status there is.
const StatusReady = "ready"

// DecodeNoParams accepts what a method without params may be given: nothing,
// null, or an empty object.
func DecodeNoParams(raw json.RawMessage) error {
	switch kind := kindOf(raw); kind {
	case "null":
		return nil
	case "map":
		f, err := fieldsOf(raw, "")
		if err == nil && len(f.members) == 0 {
			return nil
		}
		return Errorf(CodeInvalidParams, "invalid type: map, expected unit")
	default:
		return Errorf(CodeInvalidParams, "invalid type: %s, expected unit", kind)
	}
}
