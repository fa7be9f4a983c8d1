package protocol

import (
	"encoding/json"
	"errors"
	"slices"
)

// Methods about the server's machine (PROTOCOL.md, "Environment").
const (
	MethodEnvironmentInfo       = "environment/info"
	MethodEnvironmentStatus     = "environment/status"
	MethodEnvironmentConfigRead = "environmentConfig/read"
)

// EnvironmentInfo describes the machine. Clients require Shell. Every path except
// Shell.Path is a URI.
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

	// ProcessOwnership is an extension.
	ProcessOwnership *ProcessOwnership `json:"processOwnership,omitempty"`
	// Sandbox is an extension.
	Sandbox *SandboxInfo `json:"sandbox,omitempty"`
	// SessionLifetime is an extension; nil if a session ends with its connection.
	SessionLifetime *SessionLifetime `json:"sessionLifetime,omitempty"`
	// Machine is an extension: the name under which the server has joined a fleet.
	Machine string `json:"machine,omitempty"`
}

// SandboxInfo is the operator's choice for sandboxes, and the means that confine files
// (PROTOCOL.md, "Sandbox").
type SandboxInfo struct {
	Mode   string `json:"mode"`             // auto, require, off or landlock
	Means  string `json:"means"`            // userNamespace, namespaces, bubblewrap, landlock or none
	Reason string `json:"reason,omitempty"` // why none
}

// ProcessOwnership says how the server finds the descendants of processes (PROTOCOL.md,
// "Ownership"), and which of the limits memoryBytes, pids and cpus it can enforce.
type ProcessOwnership struct {
	Means  string   `json:"means"` // cgroup, subreaper or processGroup
	Limits []string `json:"limits"`
	// Reason says why the server cannot see the descendants of its processes; "" if it can.
	Reason string `json:"reason,omitempty"`
}

// Shell is the account's login shell. Clients know the names zsh, bash, sh,
// powershell and cmd.
type Shell struct {
	Name string `json:"name"`
	Path string `json:"path"` // as the system spells it
}

// Capabilities are announced only when they work; an absent flag is false. Released
// clients know the first ones; the others are extensions.
type Capabilities struct {
	FsWatchMissing        bool `json:"fsWatchMissing,omitempty"`        // fs/watchMissing
	EnvironmentConfigRead bool `json:"environmentConfigRead,omitempty"` // environmentConfig/read
	FileWriteStreaming    bool `json:"fileWriteStreaming,omitempty"`    // fs/open with mode, fs/writeBlock
	HTTPHeaderEnvVars     bool `json:"httpHeaderEnvVars"`               // http/request honours valueEnvVar

	// The following need a sandbox that can enforce every policy.
	CapabilityDiscoverySandbox bool `json:"capabilityDiscoverySandbox,omitempty"` // capabilityRoots/discoverV1 honours sandbox
	SandboxedFileStreaming     bool `json:"sandboxedFileStreaming,omitempty"`     // fs/open honours sandbox
	// With everything else writable, devices and the more precise entries keep their
	// restrictions.
	LinuxRootWritePreservesDevices              bool `json:"linuxRootWritePreservesDevices,omitempty"`
	LinuxApprovedRootWritePreservesRestrictions bool `json:"linuxApprovedRootWritePreservesRestrictions,omitempty"`

	FsMetadata               bool `json:"fsMetadata,omitempty"` // modes, times and links
	BinaryFrames             bool `json:"binaryFrames,omitempty"`
	Compress                 bool `json:"compress,omitempty"`
	FsRename                 bool `json:"fsRename,omitempty"`             // fs/rename
	FsWatch                  bool `json:"fsWatch,omitempty"`              // fs/watch, fs/unwatch
	FsWriteFileCondition     bool `json:"fsWriteFileCondition,omitempty"` // fs/writeFile with expectedSha256
	FsWriteFileMode          bool `json:"fsWriteFileMode,omitempty"`      // fs/writeFile with mode
	FsWriteFileReplace       bool `json:"fsWriteFileReplace,omitempty"`   // fs/writeFile with replace; not on every system
	HTTPRequestCancel        bool `json:"httpRequestCancel,omitempty"`
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
	ProcessScreen            bool `json:"processScreen,omitempty"`
	ProcessSignals           bool `json:"processSignals,omitempty"`
	ProcessSnapshot          bool `json:"processSnapshot,omitempty"`
	ProcessTerminateGraceful bool `json:"processTerminateGraceful,omitempty"`
	ProcessUsage             bool `json:"processUsage,omitempty"` // not on every system
	ProcessWait              bool `json:"processWait,omitempty"`
	Recordings               bool `json:"recordings,omitempty"`     // recording/list and recording/read
	SessionControl           bool `json:"sessionControl,omitempty"` // session/end, and sessionId in process/signal and process/terminate
	SessionKeep              bool `json:"sessionKeep,omitempty"`    // session/keep
	SessionList              bool `json:"sessionList,omitempty"`    // session/list, and all of process/list
	SessionObserve           bool `json:"sessionObserve,omitempty"`
	SessionRead              bool `json:"sessionRead,omitempty"` // sessionId in process/read, process/snapshot and process/screen
	StartID                  bool `json:"startId,omitempty"`
	TCPOpen                  bool `json:"tcpOpen,omitempty"`
	WebLink                  bool `json:"webLink,omitempty"` // web/link
}

// EnvironmentStatus is the answer to environment/status.
type EnvironmentStatus struct {
	Status string `json:"status"`
}

// StatusReady is the only status.
const StatusReady = "ready"

// EnvironmentConfigReadParams are the params of environmentConfig/read. A path is a list
// of the keys of tables.
type EnvironmentConfigReadParams struct {
	Cwd               Path       `json:"cwd"`
	ConfigPaths       [][]string `json:"configPaths"`
	RequirementsPaths [][]string `json:"requirementsPaths"`
}

func (p *EnvironmentConfigReadParams) check() error {
	if len(p.ConfigPaths)+len(p.RequirementsPaths) == 0 {
		return errors.New("at least one config or requirements path is required")
	}
	for _, path := range slices.Concat(p.ConfigPaths, p.RequirementsPaths) {
		if len(path) == 0 {
			return errors.New("TOML paths must contain at least one key segment")
		}
	}
	return nil
}

// EnvironmentConfig is the answer to environmentConfig/read.
type EnvironmentConfig struct {
	UserHomeDir  *Path        `json:"userHomeDir,omitempty"`
	CodexHomeDir *Path        `json:"codexHomeDir,omitempty"`
	Hostname     *string      `json:"hostname"`
	Config       ConfigLayers `json:"config"`
	Requirements ConfigLayers `json:"requirements"`
}

// ConfigLayers are the files of a configuration, in ascending precedence.
type ConfigLayers struct {
	Layers              []ConfigLayer `json:"layers"`
	CloudInsertionIndex int           `json:"cloudInsertionIndex"` // where the client puts a layer of its own
}

// ConfigLayer is one file of a configuration, reduced to the requested parts.
type ConfigLayer struct {
	Source  string `json:"source"`
	BaseDir Path   `json:"baseDir"`
	TOML    string `json:"toml"`
}

// NoParams are the params of a method that has none: absent, null, or an empty
// object.
type NoParams struct{}

func (*NoParams) decode(raw json.RawMessage) error {
	if len(raw) == 0 || isNull(raw) {
		return nil
	}
	f, err := fieldsOf(raw)
	if err == nil && len(f.members) > 0 {
		err = at(quote(string(f.members[0].name)), errors.New("the method takes no params"))
	}
	return err
}
