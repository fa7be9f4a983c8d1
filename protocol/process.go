package protocol

import (
	"encoding/json"
	"fmt"
)

// Methods and notifications about processes (PROTOCOL.md, "Processes").
const (
	MethodStart     = "process/start"
	MethodRead      = "process/read"
	MethodWrite     = "process/write"
	MethodSignal    = "process/signal"
	MethodTerminate = "process/terminate"

	NotificationOutput = "process/output"
	NotificationExited = "process/exited"
	NotificationClosed = "process/closed"

	// For clients that asked for them in initialize.
	NotificationStarted = "process/started"
	NotificationFailed  = "process/failed"
	NotificationDropped = "process/dropped"
)

// Start are the params of process/start.
type Start struct {
	ProcessID             string            `json:"processId"`
	StartID               *string           `json:"startId,omitempty"` // a repetition under it starts nothing
	Argv                  []string          `json:"argv"`
	Cwd                   Path              `json:"cwd"`
	Env                   map[string]string `json:"env"`
	TTY                   bool              `json:"tty"`
	Arg0                  *string           `json:"arg0,omitempty"`
	EnvPolicy             *EnvPolicy        `json:"envPolicy,omitempty"`
	PipeStdin             bool              `json:"pipeStdin,omitempty"`
	Size                  *TerminalSize     `json:"size,omitempty"` // of the terminal; nil: 24 rows, 80 columns
	Sandbox               json.RawMessage   `json:"sandbox,omitempty"`
	EnforceManagedNetwork bool              `json:"enforceManagedNetwork,omitempty"`
	ManagedNetwork        json.RawMessage   `json:"managedNetwork,omitempty"`
	NetworkProxy          json.RawMessage   `json:"networkProxy,omitempty"`
	Metadata              *Metadata         `json:"metadata,omitempty"`

	// Drain says what closed waits for; "": what the server was told.
	Drain Drain `json:"drain,omitempty"`

	// KeepDescendants asks that what the process leaves running outlives its
	// session (PROTOCOL.md, "Descendants").
	KeepDescendants bool `json:"keepDescendants,omitempty"`
	StartLimits

	// Form is told by the members direct and prepared; Program is a prepared
	// start's.
	Form    StartForm `json:"-"`
	Program Path      `json:"-"`
}

// DecodeStart decodes the params of process/start.
func DecodeStart(raw json.RawMessage) (p Start, err error) {
	err = decodeParams(raw, "ExecParams", func(f *fields) {
		if !p.decodeForm(f) {
			p.decodeOrdinary(f)
		}
		p.StartID = f.optionalIdentifier("startId")
		if p.StartID != nil && *p.StartID == "" {
			f.fail(fmt.Errorf("startId must not be empty"))
		}
		p.Drain = f.drain()
		p.KeepDescendants = f.boolOr("keepDescendants", false)
		p.StartLimits = f.startLimits()
		if raw := f.optional("metadata"); raw != nil {
			p.Metadata = parse(f, raw, decodeMetadata)
		}
	})
	return p, err
}

func (p *Start) decodeOrdinary(f *fields) {
	p.ProcessID = f.identifier("processId")
	p.Argv = f.strings("argv")
	p.Cwd = f.path("cwd")
	p.Env = f.stringMap("env")
	p.decodeIO(f)
	p.Arg0 = f.optionalString("arg0")
	p.Sandbox = f.raw("sandbox")
	p.EnforceManagedNetwork = f.boolOr("enforceManagedNetwork", false)
	p.ManagedNetwork = f.raw("managedNetwork")
	p.NetworkProxy = f.raw("networkProxy")
	if raw := f.optional("envPolicy"); raw != nil {
		p.EnvPolicy = parse(f, raw, decodeEnvPolicy)
	}
}

// EnvPolicy says what a child inherits of the server's environment
// (PROTOCOL.md, "Environment of a process").
type EnvPolicy struct {
	Inherit               string            `json:"inherit"` // InheritAll, InheritCore, InheritNone
	IgnoreDefaultExcludes bool              `json:"ignoreDefaultExcludes"`
	Exclude               []string          `json:"exclude"`
	Set                   map[string]string `json:"set"`
	IncludeOnly           []string          `json:"includeOnly"`
}

// The values of EnvPolicy.Inherit.
const (
	InheritAll  = "all"
	InheritCore = "core"
	InheritNone = "none"
)

func decodeEnvPolicy(raw json.RawMessage) (*EnvPolicy, error) {
	f, err := fieldsOf(raw, "ExecEnvPolicy")
	if err != nil {
		return nil, err
	}
	p := &EnvPolicy{
		Inherit:               f.string("inherit"),
		IgnoreDefaultExcludes: f.bool("ignoreDefaultExcludes"),
		Exclude:               f.strings("exclude"),
		Set:                   f.stringMap("set"),
		IncludeOnly:           f.strings("includeOnly"),
	}
	switch p.Inherit {
	case InheritAll, InheritCore, InheritNone:
	default:
		f.fail(fmt.Errorf("unknown variant `%s`, expected one of `core`, `all`, `none`", p.Inherit))
	}
	return p, f.err
}

// Metadata ties a process to the caller's records; the server only logs it.
type Metadata struct {
	ThreadID   *string `json:"threadId,omitempty"` // a UUID
	ToolCallID *string `json:"toolCallId,omitempty"`
}

func decodeMetadata(raw json.RawMessage) (*Metadata, error) {
	f, err := fieldsOf(raw, "ExecMetadata")
	if err != nil {
		return nil, err
	}
	m := &Metadata{ThreadID: f.optionalIdentifier("threadId"), ToolCallID: f.optionalIdentifier("toolCallId")}
	if m.ThreadID != nil && !isUUID(*m.ThreadID) {
		f.fail(fmt.Errorf("UUID parsing failed: %q is not a UUID", *m.ThreadID))
	}
	return m, f.err
}

// isUUID accepts the usual form, 8-4-4-4-12 hexadecimal digits.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch i {
		case 8, 13, 18, 23:
			if s[i] != '-' {
				return false
			}
		default:
			if !isHex(s[i]) {
				return false
			}
		}
	}
	return true
}

// StartResult is the answer to process/start.
type StartResult struct {
	ProcessID   string `json:"processId"`
	SandboxType string `json:"sandboxType"`
}

// Read are the params of process/read; nil means 0, no limit and no wait.
type Read struct {
	ProcessID string  `json:"processId"`
	AfterSeq  *uint64 `json:"afterSeq,omitempty"`
	MaxBytes  *uint64 `json:"maxBytes,omitempty"`
	WaitMs    *uint64 `json:"waitMs,omitempty"`
}

// DecodeRead decodes the params of process/read.
func DecodeRead(raw json.RawMessage) (p Read, err error) {
	err = decodeParams(raw, "ReadParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.AfterSeq = f.optionalUnsigned("afterSeq")
		p.MaxBytes = f.optionalUnsigned("maxBytes")
		p.WaitMs = f.optionalUnsigned("waitMs")
	})
	return p, err
}

// Streams of a process, as named on the wire.
const (
	Stdout = "stdout"
	Stderr = "stderr"
	PTY    = "pty"
)

// Write are the params of process/write. A nil WriteID asks for no
// de-duplication.
type Write struct {
	ProcessID string
	Chunk     []byte
	WriteID   *string
}

// DecodeWrite decodes the params of process/write. Chunk is a copy.
func DecodeWrite(raw json.RawMessage) (p Write, err error) {
	err = decodeParams(raw, "WriteParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.Chunk = f.base64("chunk")
		p.WriteID = f.optionalIdentifier("writeId")
		if p.WriteID != nil && *p.WriteID == "" {
			f.fail(fmt.Errorf("writeId must not be empty"))
		}
	})
	return p, err
}

// WriteResult is the answer to process/write: Status for clients from the first
// sessions on, Accepted for those before.
type WriteResult struct {
	Status   WriteStatus `json:"status"`
	Accepted bool        `json:"accepted"`
}

// WriteStatus says what became of a write.
type WriteStatus string

// The values of WriteStatus.
const (
	WriteAccepted       WriteStatus = "accepted"
	WriteUnknownProcess WriteStatus = "unknownProcess"
	WriteStdinClosed    WriteStatus = "stdinClosed"
	WriteStarting       WriteStatus = "starting"
)

// Empty is the answer of methods that have nothing to say: {}.
type Empty struct{}
