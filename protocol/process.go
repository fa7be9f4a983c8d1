package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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

// ReadParams are the params of process/read. By default it returns all output at once: a nil
// AfterSeq means 0, a nil MaxBytes no limit, and a nil WaitMs no wait.
type ReadParams struct {
	ProcessID string  `json:"processId" wire:"identifier"`
	AfterSeq  *uint64 `json:"afterSeq,omitempty"` // return events with greater numbers; nil means 0
	MaxBytes  *uint64 `json:"maxBytes,omitempty"` // the most output to return, but at least one chunk; nil means no limit
	WaitMs    *uint64 `json:"waitMs,omitempty"`   // the longest time to wait for output; nil means 0

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // the session of the process; nil means that of the connection
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
	WriteID   *string `json:"writeId,omitempty" wire:"identifier"` // not empty; the server recognizes a repetition by it
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
	Accepted bool        `json:"accepted"` // Status is WriteAccepted
}

// WriteStatus is the result of a write.
type WriteStatus string

// The values of WriteStatus.
const (
	WriteAccepted       WriteStatus = "accepted"       // the server writes the data, in order
	WriteUnknownProcess WriteStatus = "unknownProcess" // there is no such process
	WriteStdinClosed    WriteStatus = "stdinClosed"    // the process does not read any more, or never did
	WriteStarting       WriteStatus = "starting"       // the process has not started yet
)

// Empty is the empty answer {}.
type Empty struct{}

// Methods for a running process that released clients do not know (EXTENSIONS.md,
// "processCloseStdin", "processResize", "processAck").
const (
	MethodCloseStdin = "process/closeStdin"
	MethodResize     = "process/resize"
	MethodAck        = "process/ack" // notification
)

// CloseStdinParams are the params of process/closeStdin.
type CloseStdinParams struct {
	ProcessID string `json:"processId" wire:"identifier"`
}

// ResizeParams are the params of process/resize.
type ResizeParams struct {
	ProcessID string       `json:"processId" wire:"identifier"`
	Size      TerminalSize `json:"size"` // the new size
}

// AckParams are the params of process/ack: the client has received every event of the process
// up to and including Seq.
type AckParams struct {
	ProcessID string `json:"processId" wire:"identifier"`
	Seq       uint64 `json:"seq"` // the number of the last event that the client has
}

// SignalParams are the params of process/signal.
type SignalParams struct {
	ProcessID    string `json:"processId" wire:"identifier"`
	Signal       string `json:"signal"`                                     // "interrupt", or in any case and with or without SIG: "SIGTERM", "term"
	ToForeground bool   `json:"toForeground,omitempty" wire:"absent=false"` // send it to the terminal's foreground group, not to the process's own

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // the session of the process; nil means that of the connection
}

// Name returns the full name of the signal in upper case, such as "SIGTERM".
func (s SignalParams) Name() string {
	if s.Signal == SignalInterrupt {
		return "SIGINT"
	}
	return "SIG" + strings.TrimPrefix(strings.ToUpper(s.Signal), "SIG")
}

func (s *SignalParams) check() error {
	if !signalNames[strings.TrimPrefix(s.Name(), "SIG")] {
		return at("signal", fmt.Errorf("expected interrupt or the name of a signal such as SIGTERM, got %s", quote(s.Signal)))
	}
	return nil
}

// SignalInterrupt is the only signal that released clients know, by this name.
const SignalInterrupt = "interrupt"

// signalNames are the POSIX names without SIG, and further names that every system has.
var signalNames = set("ABRT ALRM BUS CHLD CONT FPE HUP ILL INT IO KILL PIPE PROF QUIT SEGV STOP SYS TERM TRAP " +
	"TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ")

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		m[word] = true
	}
	return m
}

// TerminateParams are the params of process/terminate.
type TerminateParams struct {
	ProcessID string        `json:"processId" wire:"identifier"`
	Mode      TerminateMode `json:"mode,omitempty" wire:"optional"` // how to end the process; "" means TerminateForce
	TimeoutMs *uint64       `json:"timeoutMs,omitempty"`            // for TerminateGraceful, which requires it: the time until SIGKILL, at most MaxGracefulMs

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // the session of the process; nil means that of the connection
}

// TerminateMode selects how to end a process.
type TerminateMode string

// The values of TerminateMode: SIGKILL now, or SIGTERM now and SIGKILL later.
const (
	TerminateForce    TerminateMode = "force"
	TerminateGraceful TerminateMode = "graceful"
)

// MaxGracefulMs is the maximum of TerminateParams.TimeoutMs.
const MaxGracefulMs = 3_600_000

func (p *TerminateParams) check() error {
	switch graceful := p.Mode == TerminateGraceful; {
	case !graceful && p.Mode != "" && p.Mode != TerminateForce:
		return at("mode", oneOf(string(p.Mode), string(TerminateForce), string(TerminateGraceful)))
	case !graceful && p.TimeoutMs != nil:
		return at("timeoutMs", errors.New("only for the mode graceful"))
	case graceful && p.TimeoutMs == nil:
		return missing("timeoutMs")
	case graceful && *p.TimeoutMs > MaxGracefulMs:
		return at("timeoutMs", fmt.Errorf("%d ms, the limit is %d", *p.TimeoutMs, MaxGracefulMs))
	}
	return nil
}

// TerminateResult is the answer to process/terminate.
type TerminateResult struct {
	Running bool `json:"running"` // the process was still running
}
