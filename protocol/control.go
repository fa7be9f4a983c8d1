package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// Methods, unknown to released clients, for a running process (PROTOCOL.md,
// "process/closeStdin", "process/resize", "Acknowledging").
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
	Size      TerminalSize `json:"size"`
}

// AckParams are the params of process/ack: the client has every event of the process up
// to Seq.
type AckParams struct {
	ProcessID string `json:"processId" wire:"identifier"`
	Seq       uint64 `json:"seq"`
}

// SignalParams are the params of process/signal.
type SignalParams struct {
	ProcessID    string `json:"processId" wire:"identifier"`
	Signal       string `json:"signal"`                                     // "interrupt", or in any case and with or without SIG: "SIGTERM", "term"
	ToForeground bool   `json:"toForeground,omitempty" wire:"absent=false"` // to the terminal's foreground group, not the process's own

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // nil means that of the connection
}

// Name returns the signal's name in full and capitals, such as "SIGTERM".
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
	Mode      TerminateMode `json:"mode,omitempty" wire:"optional"` // "" means TerminateForce
	TimeoutMs *uint64       `json:"timeoutMs,omitempty"`            // TerminateGraceful: at most MaxGracefulMs

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // nil means that of the connection
}

// TerminateMode says how to end a process.
type TerminateMode string

// The values of TerminateMode: SIGKILL now, or SIGTERM now and SIGKILL later.
const (
	TerminateForce    TerminateMode = "force"
	TerminateGraceful TerminateMode = "graceful"
)

// MaxGracefulMs bounds how long a process may take to end by itself, in milliseconds.
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
	Running bool `json:"running"`
}
