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
	Shell                Shell        `json:"shell"`                 // the login shell of the server's account
	ExecutorVersion      string       `json:"executorVersion"`       // the server's version
	Cwd                  *Path        `json:"cwd"`                   // the directory in which the server was started; null if it is gone
	UserHomeDir          *Path        `json:"userHomeDir,omitempty"` // absent if unknown
	PlatformOS           string       `json:"platformOs"`            // the system: linux, macos, windows, or Go's name of another one
	PrependPathDirs      []Path       `json:"prependPathDirs"`       // always empty
	TemporaryDirectories []Path       `json:"temporaryDirectories"`  // TMPDIR of the server, if it is set
	TempDir              *Path        `json:"tempDir,omitempty"`     // the system's directory for temporary files
	Capabilities         Capabilities `json:"capabilities"`          // what the server can do

	ProcessOwnership *ProcessOwnership `json:"processOwnership,omitempty"` // an extension: how the server keeps track of descendants
	Sandbox          *SandboxInfo      `json:"sandbox,omitempty"`          // an extension: the server's sandboxes
	SessionLifetime  *SessionLifetime  `json:"sessionLifetime,omitempty"`  // an extension; nil if a session ends with its connection
	Machine          string            `json:"machine,omitempty"`          // an extension: the name under which the server has joined a fleet
}

// SandboxInfo is the operator's choice for sandboxes, and the mechanism that confines files
// (PROTOCOL.md, "Sandbox").
type SandboxInfo struct {
	Mode   string `json:"mode"`             // the operator's choice: auto, require, off or landlock
	Means  string `json:"means"`            // one of userNamespace, namespaces, bubblewrap, landlock and none
	Reason string `json:"reason,omitempty"` // why, if Means is none
}

// ProcessOwnership describes how the server finds the descendants of processes
// (docs/operations.md, "What a process owns"), and which of the limits memoryBytes, pids and
// cpus it can enforce.
type ProcessOwnership struct {
	Means  string   `json:"means"`  // one of cgroup, subreaper and processGroup
	Limits []string `json:"limits"` // those of memoryBytes, pids and cpus that the server can enforce
	// Reason explains why the server cannot find the descendants of its processes; "" if it can.
	Reason string `json:"reason,omitempty"`
}

// Shell is the account's login shell. Clients know the names zsh, bash, sh,
// powershell and cmd.
type Shell struct {
	Name string `json:"name"` // such as bash
	Path string `json:"path"` // in the syntax of the operating system
}

// Capabilities are the optional features of a server, which announces them only if they work
// on its machine. An absent flag is false. Released clients know those up to
// linuxApprovedRootWritePreservesRestrictions; the others are extensions.
type Capabilities struct {
	FsWatchMissing        bool `json:"fsWatchMissing,omitempty"`        // fs/watchMissing
	EnvironmentConfigRead bool `json:"environmentConfigRead,omitempty"` // environmentConfig/read
	FileWriteStreaming    bool `json:"fileWriteStreaming,omitempty"`    // fs/open with mode, fs/writeBlock
	HTTPHeaderEnvVars     bool `json:"httpHeaderEnvVars"`               // http/request honours valueEnvVar

	CapabilityDiscoverySandbox bool `json:"capabilityDiscoverySandbox,omitempty"` // capabilityRoots/discoverV1 honours sandbox, whatever the policy
	SandboxedFileStreaming     bool `json:"sandboxedFileStreaming,omitempty"`     // fs/open honours sandbox, whatever the policy
	// If the root directory is writable, devices and more specific entries keep their
	// restrictions.
	LinuxRootWritePreservesDevices              bool `json:"linuxRootWritePreservesDevices,omitempty"`
	LinuxApprovedRootWritePreservesRestrictions bool `json:"linuxApprovedRootWritePreservesRestrictions,omitempty"` // a sandbox that makes / writable enforces the entries that deny paths

	FsMetadata               bool `json:"fsMetadata,omitempty"`               // modes, times and links
	BinaryFrames             bool `json:"binaryFrames,omitempty"`             // binary messages
	Compress                 bool `json:"compress,omitempty"`                 // compressed messages
	FsRename                 bool `json:"fsRename,omitempty"`                 // fs/rename
	FsWatch                  bool `json:"fsWatch,omitempty"`                  // fs/watch, fs/unwatch
	FsWriteFileCondition     bool `json:"fsWriteFileCondition,omitempty"`     // fs/writeFile with expectedSha256
	FsWriteFileMode          bool `json:"fsWriteFileMode,omitempty"`          // fs/writeFile with mode
	FsWriteFileReplace       bool `json:"fsWriteFileReplace,omitempty"`       // fs/writeFile with replace; not on every system
	HTTPRequestCancel        bool `json:"httpRequestCancel,omitempty"`        // http/request/cancel
	ProcessAck               bool `json:"processAck,omitempty"`               // process/ack
	ProcessCloseStdin        bool `json:"processCloseStdin,omitempty"`        // process/closeStdin
	ProcessDirectExec        bool `json:"processDirectExec,omitempty"`        // process/start with direct
	ProcessDrain             bool `json:"processDrain,omitempty"`             // process/start with drain
	ProcessEvents            bool `json:"processEvents,omitempty"`            // process/started, process/failed and process/dropped
	ProcessIO                bool `json:"processIo,omitempty"`                // process/start with io
	ProcessLimits            bool `json:"processLimits,omitempty"`            // process/start with timeoutMs and maxOutputBytes; processOwnership lists the other limits
	ProcessList              bool `json:"processList,omitempty"`              // process/list
	ProcessPreparedExec      bool `json:"processPreparedExec,omitempty"`      // process/start with prepared
	ProcessReadBackground    bool `json:"processReadBackground,omitempty"`    // process/readBackground
	ProcessResize            bool `json:"processResize,omitempty"`            // process/resize, and process/start with size
	ProcessScreen            bool `json:"processScreen,omitempty"`            // process/screen
	ProcessSignals           bool `json:"processSignals,omitempty"`           // process/signal with every signal, and with toForeground
	ProcessSnapshot          bool `json:"processSnapshot,omitempty"`          // process/snapshot
	ProcessTerminateGraceful bool `json:"processTerminateGraceful,omitempty"` // process/terminate with mode
	ProcessUsage             bool `json:"processUsage,omitempty"`             // process/usage; not on every system
	ProcessWait              bool `json:"processWait,omitempty"`              // process/wait
	Recordings               bool `json:"recordings,omitempty"`               // recording/list and recording/read
	SessionControl           bool `json:"sessionControl,omitempty"`           // session/end, and sessionId in process/signal and process/terminate
	SessionKeep              bool `json:"sessionKeep,omitempty"`              // session/keep
	SessionList              bool `json:"sessionList,omitempty"`              // session/list, and process/list with all
	SessionObserve           bool `json:"sessionObserve,omitempty"`           // the member observeSessionId of initialize, and session/takeOver
	SessionRead              bool `json:"sessionRead,omitempty"`              // the member sessionId of process/read, process/snapshot and process/screen
	StartID                  bool `json:"startId,omitempty"`                  // process/start with startId
	TCPOpen                  bool `json:"tcpOpen,omitempty"`                  // tcp/open and the notifications of forwarded connections
	WebLink                  bool `json:"webLink,omitempty"`                  // web/link
}

// EnvironmentStatus is the answer to environment/status.
type EnvironmentStatus struct {
	Status string `json:"status"` // always StatusReady
}

// StatusReady is the only status.
const StatusReady = "ready"

// EnvironmentConfigReadParams are the params of environmentConfig/read. A path is a list
// of the keys of tables.
type EnvironmentConfigReadParams struct {
	Cwd               Path       `json:"cwd"`               // the directory whose configuration counts
	ConfigPaths       [][]string `json:"configPaths"`       // the wanted parts of the configuration
	RequirementsPaths [][]string `json:"requirementsPaths"` // the wanted parts of the requirements
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
	UserHomeDir  *Path        `json:"userHomeDir,omitempty"`  // absent if unknown
	CodexHomeDir *Path        `json:"codexHomeDir,omitempty"` // absent if unknown
	Hostname     *string      `json:"hostname"`               // null if unknown
	Config       ConfigLayers `json:"config"`                 // the configuration
	Requirements ConfigLayers `json:"requirements"`           // the requirements
}

// ConfigLayers are the files of a configuration, in ascending precedence.
type ConfigLayers struct {
	Layers              []ConfigLayer `json:"layers"`              // one for each file
	CloudInsertionIndex int           `json:"cloudInsertionIndex"` // where the client inserts a layer of its own
}

// ConfigLayer is one file of a configuration, reduced to the requested parts.
type ConfigLayer struct {
	Source  string `json:"source"`  // the file
	BaseDir Path   `json:"baseDir"` // the directory that relative paths begin in
	TOML    string `json:"toml"`    // the text of the requested parts
}

// NoParams are the params of a method without params: absent, null, or an empty object.
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

// MethodDiscoverRoots reads the manifests of plugins and skills (PROTOCOL.md, "Discovery").
const MethodDiscoverRoots = "capabilityRoots/discoverV1"

// maxDiscoveryRoots is the largest number of roots in a request.
const maxDiscoveryRoots = 128

// DiscoverRootsParams are the params of capabilityRoots/discoverV1.
type DiscoverRootsParams struct {
	Roots []CapabilityRoot `json:"roots"` // at most 128
}

func (p *DiscoverRootsParams) check() error {
	if len(p.Roots) > maxDiscoveryRoots {
		return Errorf(CodeInvalidRequest, "capability root discovery accepts at most %d roots", maxDiscoveryRoots)
	}
	return nil
}

// CapabilityRoot is one directory to read.
type CapabilityRoot struct {
	ID      string          `json:"id" wire:"identifier"` // the answer has the same id
	Path    Path            `json:"path"`                 // a directory in which the client expects plugins or skills
	Sandbox json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// DiscoveredRoots is the answer to capabilityRoots/discoverV1, in the order of the
// request.
type DiscoveredRoots struct {
	Roots []DiscoveredRoot `json:"roots"` // in the order of the request
}

// DiscoveredRoot is the content of one directory. Error is set if the server could not read
// it. Warnings lists what was omitted.
type DiscoveredRoot struct {
	ID                 string            `json:"id"`                 // that of the request
	Path               Path              `json:"path"`               // that of the request
	Plugin             *DiscoveredPlugin `json:"plugin"`             // null if the directory has none
	Skills             []DiscoveredSkill `json:"skills"`             // in the order of their paths
	NamespaceManifests []DiscoveredFile  `json:"namespaceManifests"` // the plugin manifests at the root and below it, in the order of their paths
	Warnings           []string          `json:"warnings"`           // what the server left out, and why
	Error              *string           `json:"error"`              // why the server could not read the directory; null if it could
}

// DiscoveredPlugin is the plugin in a root.
type DiscoveredPlugin struct {
	Manifest   DiscoveredFile  `json:"manifest"`   // the file plugin.json
	MCPConfig  *DiscoveredFile `json:"mcpConfig"`  // the file that mcpServers of the manifest names, else .mcp.json; null if there is none
	AppsConfig *DiscoveredFile `json:"appsConfig"` // the file that apps of the manifest names, else .app.json; null if there is none
}

// DiscoveredSkill is a skill below a root.
type DiscoveredSkill struct {
	Instructions DiscoveredFile  `json:"instructions"` // the file SKILL.md
	Metadata     *DiscoveredFile `json:"metadata"`     // the file agents/openai.yaml next to it; null if there is none
}

// DiscoveredFile is a text file.
type DiscoveredFile struct {
	Path     Path   `json:"path"`
	Contents string `json:"contents"` // the text
}
