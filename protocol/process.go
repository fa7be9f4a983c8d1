package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

	// Only for clients that ask for them in initialize.
	NotificationStarted = "process/started"
	NotificationFailed  = "process/failed"
	NotificationDropped = "process/dropped"
)

// StartParams are the params of process/start.
type StartParams struct {
	ProcessID             string            `json:"processId" wire:"identifier"`
	StartID               *string           `json:"startId,omitempty" wire:"identifier"` // a repetition under it starts nothing
	Argv                  []string          `json:"argv"`
	Cwd                   Path              `json:"cwd"`
	Env                   map[string]string `json:"env"`
	TTY                   bool              `json:"tty" wire:"-"`
	Arg0                  *string           `json:"arg0,omitempty"`
	EnvPolicy             *EnvPolicy        `json:"envPolicy,omitempty"`
	PipeStdin             bool              `json:"pipeStdin,omitempty" wire:"-"`
	Size                  *TerminalSize     `json:"size,omitempty" wire:"-"` // of the terminal; nil: 24 rows, 80 columns
	Sandbox               json.RawMessage   `json:"sandbox,omitempty"`
	EnforceManagedNetwork bool              `json:"enforceManagedNetwork,omitempty" wire:"absent=false"`
	ManagedNetwork        json.RawMessage   `json:"managedNetwork,omitempty"`
	NetworkProxy          json.RawMessage   `json:"networkProxy,omitempty"`
	Metadata              *Metadata         `json:"metadata,omitempty"`

	// Drain says what closed waits for; "" means the server's default.
	Drain Drain `json:"drain,omitempty" wire:"optional,enum=quiet|eof"`
	StartLimits

	// Form is the form of the start, from the members direct and prepared. Program
	// belongs to a prepared start.
	Form    StartForm `json:"-"`
	Program Path      `json:"-"`
}

// EnvPolicy says what a child inherits from the server's environment (PROTOCOL.md,
// "Environment of a process").
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

func (p *EnvPolicy) check() error {
	return at("inherit", oneOf(p.Inherit, InheritCore, InheritAll, InheritNone))
}

// Metadata connects a process with the caller's records. The server only logs it.
type Metadata struct {
	ThreadID   *string `json:"threadId,omitempty" wire:"identifier"` // a UUID
	ToolCallID *string `json:"toolCallId,omitempty" wire:"identifier"`
}

func (m *Metadata) check() error {
	if m.ThreadID != nil && !isUUID(*m.ThreadID) {
		return at("threadId", fmt.Errorf("%s is not a UUID", quote(*m.ThreadID)))
	}
	return nil
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

// ReadParams are the params of process/read. nil means 0, no limit and no wait.
type ReadParams struct {
	ProcessID string  `json:"processId" wire:"identifier"`
	AfterSeq  *uint64 `json:"afterSeq,omitempty"`
	MaxBytes  *uint64 `json:"maxBytes,omitempty"`
	WaitMs    *uint64 `json:"waitMs,omitempty"`

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // nil means that of the connection
}

// Streams of a process, as named on the wire.
const (
	Stdout = "stdout"
	Stderr = "stderr"
	PTY    = "pty"
)

// WriteParams are the params of process/write. With a nil WriteID, the server does not
// recognize repetitions.
type WriteParams struct {
	ProcessID string  `json:"processId" wire:"identifier"`
	Chunk     []byte  `json:"chunk" wire:"bulk"`
	WriteID   *string `json:"writeId,omitempty" wire:"identifier"`
}

func (p *WriteParams) check() error {
	if p.WriteID != nil && *p.WriteID == "" {
		return errors.New("writeId must not be empty")
	}
	return nil
}

// AppendJSON implements Appender.
func (p WriteParams) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, Base64Len(len(p.Chunk))+256)
	b = p.appendHead(b)
	b = append(b, `,"chunk":"`...)
	b = AppendBase64(b, p.Chunk)
	return append(b, `"}`...)
}

// appendHead appends the params up to their chunk.
func (p WriteParams) appendHead(b []byte) []byte {
	b = append(b, `{"processId":`...)
	b = appendString(b, p.ProcessID)
	if p.WriteID != nil {
		b = append(b, `,"writeId":`...)
		b = appendString(b, *p.WriteID)
	}
	return b
}

// WriteResult is the answer to process/write. Clients that know sessions read Status, and
// older ones Accepted.
type WriteResult struct {
	Status   WriteStatus `json:"status"`
	Accepted bool        `json:"accepted"`
}

// WriteStatus is the result of a write.
type WriteStatus string

// The values of WriteStatus.
const (
	WriteAccepted       WriteStatus = "accepted"
	WriteUnknownProcess WriteStatus = "unknownProcess"
	WriteStdinClosed    WriteStatus = "stdinClosed"
	WriteStarting       WriteStatus = "starting"
)

// Empty is the empty answer {}.
type Empty struct{}
