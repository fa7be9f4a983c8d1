package protocol

import (
	"encoding/json"
	"errors"
	"slices"
)

// Methods about the machine that the server runs on (PROTOCOL.md,
// "Environment").
const (
	MethodEnvironmentInfo       = "environment/info"
	MethodEnvironmentStatus     = "environment/status"
	MethodEnvironmentConfigRead = "environmentConfig/read"
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

	// ProcessOwnership is an extension: how descendants are held together.
	ProcessOwnership *ProcessOwnership `json:"processOwnership,omitempty"`
	// Sandbox is an extension: what becomes of requests for a sandbox.
	Sandbox *SandboxInfo `json:"sandbox,omitempty"`
}

// SandboxInfo tells what the operator wants of sandboxes, and by what files are
// confined here (PROTOCOL.md, "Sandbox").
type SandboxInfo struct {
	Mode   string `json:"mode"`             // auto, require, off or landlock
	Means  string `json:"means"`            // userNamespace, namespaces, bubblewrap, landlock or none
	Reason string `json:"reason,omitempty"` // why none
}

// ProcessOwnership tells by what means the descendants of processes are found
// (PROTOCOL.md, "Ownership"), and which of the limits memoryBytes, pids and cpus
// can be enforced.
type ProcessOwnership struct {
	Means  string   `json:"means"` // cgroup, subreaper or processGroup
	Limits []string `json:"limits"`
}

// Shell is the account's login shell. Clients know the names zsh, bash, sh,
// powershell and cmd.
type Shell struct {
	Name string `json:"name"`
	Path string `json:"path"` // native
}

// Capabilities are announced only when they work; an absent flag is false. The
// first ones are those that released clients know, the others are extensions.
type Capabilities struct {
	FsWatchMissing        bool `json:"fsWatchMissing,omitempty"`        // fs/watchMissing
	EnvironmentConfigRead bool `json:"environmentConfigRead,omitempty"` // environmentConfig/read
	FileWriteStreaming    bool `json:"fileWriteStreaming,omitempty"`    // fs/open with mode, fs/writeBlock
	HTTPHeaderEnvVars     bool `json:"httpHeaderEnvVars"`               // http/request honours valueEnvVar

	FsRename                 bool `json:"fsRename,omitempty"`             // fs/rename
	FsWatch                  bool `json:"fsWatch,omitempty"`              // fs/watch, fs/unwatch
	FsWriteFileCondition     bool `json:"fsWriteFileCondition,omitempty"` // fs/writeFile with expectedSha256
	FsWriteFileMode          bool `json:"fsWriteFileMode,omitempty"`      // fs/writeFile with mode
	ProcessAck               bool `json:"processAck,omitempty"`
	ProcessCloseStdin        bool `json:"processCloseStdin,omitempty"`
	ProcessDirectExec        bool `json:"processDirectExec,omitempty"`
	ProcessDrain             bool `json:"processDrain,omitempty"` // process/start with drain
	ProcessEvents            bool `json:"processEvents,omitempty"`
	ProcessIO                bool `json:"processIo,omitempty"`
	ProcessLimits            bool `json:"processLimits,omitempty"` // timeoutMs and maxOutputBytes; the others: ProcessOwnership.Limits
	ProcessList              bool `json:"processList,omitempty"`
	ProcessPreparedExec      bool `json:"processPreparedExec,omitempty"`
	ProcessReadBackground    bool `json:"processReadBackground,omitempty"`
	ProcessResize            bool `json:"processResize,omitempty"`
	ProcessSignals           bool `json:"processSignals,omitempty"`
	ProcessSnapshot          bool `json:"processSnapshot,omitempty"`
	ProcessTerminateGraceful bool `json:"processTerminateGraceful,omitempty"`
	ProcessWait              bool `json:"processWait,omitempty"`
	SessionObserve           bool `json:"sessionObserve,omitempty"`
	StartID                  bool `json:"startId,omitempty"`
}

// EnvironmentStatus is the answer to environment/status.
type EnvironmentStatus struct {
	Status string `json:"status"`
}

// StatusReady is the only status there is.
const StatusReady = "ready"

// EnvironmentConfigRead are the params of environmentConfig/read. A path is a list
// of the keys of tables.
type EnvironmentConfigRead struct {
	Cwd               Path       `json:"cwd"`
	ConfigPaths       [][]string `json:"configPaths"`
	RequirementsPaths [][]string `json:"requirementsPaths"`
}

// DecodeEnvironmentConfigRead decodes the params of environmentConfig/read.
func DecodeEnvironmentConfigRead(raw json.RawMessage) (p EnvironmentConfigRead, err error) {
	err = decodeParams(raw, "EnvironmentConfigReadParams", func(f *fields) {
		p.Cwd = f.path("cwd")
		p.ConfigPaths = parse(f, f.required("configPaths"), decodeKeyPaths)
		p.RequirementsPaths = parse(f, f.required("requirementsPaths"), decodeKeyPaths)
		if f.err == nil && len(p.ConfigPaths)+len(p.RequirementsPaths) == 0 {
			f.fail(errors.New("at least one config or requirements path is required"))
		}
		for _, path := range slices.Concat(p.ConfigPaths, p.RequirementsPaths) {
			if len(path) == 0 {
				f.fail(errors.New("TOML paths must contain at least one key segment"))
			}
		}
	})
	return p, err
}

func decodeKeyPaths(raw json.RawMessage) ([][]string, error) {
	return decodeList(raw, decodeStrings)
}

// EnvironmentConfig is the answer to environmentConfig/read.
type EnvironmentConfig struct {
	UserHomeDir  *Path        `json:"userHomeDir,omitempty"`
	CodexHomeDir *Path        `json:"codexHomeDir,omitempty"`
	Hostname     *string      `json:"hostname"`
	Config       ConfigLayers `json:"config"`
	Requirements ConfigLayers `json:"requirements"`
}

// ConfigLayers are the files of a configuration, the weakest first.
type ConfigLayers struct {
	Layers              []ConfigLayer `json:"layers"`
	CloudInsertionIndex int           `json:"cloudInsertionIndex"` // where the client puts a layer of its own
}

// ConfigLayer is one file of a configuration, reduced to what was asked for.
type ConfigLayer struct {
	Source  string `json:"source"`
	BaseDir Path   `json:"baseDir"`
	TOML    string `json:"toml"`
}

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
