package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Methods that act on a running process besides those of released clients
// (PROTOCOL.md, "process/closeStdin", "process/resize", "Acknowledging").
const (
	MethodCloseStdin = "process/closeStdin"
	MethodResize     = "process/resize"
	MethodAck        = "process/ack" // notification
)

// CloseStdin are the params of process/closeStdin.
type CloseStdin struct {
	ProcessID string `json:"processId"`
}

// DecodeCloseStdin decodes the params of process/closeStdin.
func DecodeCloseStdin(raw json.RawMessage) (p CloseStdin, err error) {
	err = decodeParams(raw, "CloseStdinParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
	})
	return p, err
}

// Resize are the params of process/resize.
type Resize struct {
	ProcessID string       `json:"processId"`
	Size      TerminalSize `json:"size"`
}

// DecodeResize decodes the params of process/resize.
func DecodeResize(raw json.RawMessage) (p Resize, err error) {
	err = decodeParams(raw, "ResizeParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.Size = parse(f, f.required("size"), decodeSize)
	})
	return p, err
}

// Ack are the params of process/ack: the client has every event of the process
// up to Seq.
type Ack struct {
	ProcessID string `json:"processId"`
	Seq       uint64 `json:"seq"`
}

// DecodeAck decodes the params of process/ack.
func DecodeAck(raw json.RawMessage) (p Ack, err error) {
	err = decodeParams(raw, "AckParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.Seq = f.unsigned("seq")
	})
	return p, err
}

// Signal are the params of process/signal.
type Signal struct {
	ProcessID    string `json:"processId"`
	Signal       string `json:"signal"`                 // "interrupt", "SIGTERM", "term"
	ToForeground bool   `json:"toForeground,omitempty"` // to the terminal's foreground group, not the process's own
}

// Name returns the signal's name in full and capitals, such as "SIGTERM".
func (s Signal) Name() string {
	if s.Signal == SignalInterrupt {
		return "SIGINT"
	}
	return "SIG" + strings.TrimPrefix(strings.ToUpper(s.Signal), "SIG")
}

// SignalInterrupt is the one signal that released clients know, by this name.
const SignalInterrupt = "interrupt"

// signalNames are the names of POSIX without their SIG, and those that every
// system has besides.
var signalNames = set("ABRT ALRM BUS CHLD CONT FPE HUP ILL INT IO KILL PIPE PROF QUIT SEGV STOP SYS TERM TRAP " +
	"TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ")

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		m[word] = true
	}
	return m
}

// DecodeSignal decodes the params of process/signal. Names come in any case and
// with or without SIG.
func DecodeSignal(raw json.RawMessage) (p Signal, err error) {
	err = decodeParams(raw, "SignalParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.Signal = f.string("signal")
		p.ToForeground = f.boolOr("toForeground", false)
		if f.err == nil && !signalNames[strings.TrimPrefix(p.Name(), "SIG")] {
			f.fail(fmt.Errorf("unknown variant `%s`, expected `interrupt` or the name of a signal, such as `SIGTERM`", p.Signal))
		}
	})
	return p, err
}

// Terminate are the params of process/terminate.
type Terminate struct {
	ProcessID string        `json:"processId"`
	Mode      TerminateMode `json:"mode,omitempty"`      // "" means TerminateForce
	TimeoutMs *uint64       `json:"timeoutMs,omitempty"` // TerminateGraceful: at most MaxGracefulMs
}

// TerminateMode says how a process is ended.
type TerminateMode string

// The values of TerminateMode: SIGKILL now, or SIGTERM now and SIGKILL later.
const (
	TerminateForce    TerminateMode = "force"
	TerminateGraceful TerminateMode = "graceful"
)

// MaxGracefulMs bounds how long a process may take to end by itself.
const MaxGracefulMs = 3_600_000

// DecodeTerminate decodes the params of process/terminate.
func DecodeTerminate(raw json.RawMessage) (p Terminate, err error) {
	err = decodeParams(raw, "TerminateParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		if mode := f.optionalString("mode"); mode != nil {
			p.Mode = TerminateMode(*mode)
		}
		p.TimeoutMs = f.optionalUnsigned("timeoutMs")
		switch graceful := p.Mode == TerminateGraceful; {
		case !graceful && p.Mode != "" && p.Mode != TerminateForce:
			f.fail(fmt.Errorf("unknown variant `%s`, expected `force` or `graceful`", p.Mode))
		case !graceful && p.TimeoutMs != nil:
			f.fail(errors.New("`timeoutMs` is for mode `graceful`"))
		case graceful && p.TimeoutMs == nil:
			f.fail(errors.New("missing field `timeoutMs`"))
		case graceful && *p.TimeoutMs > MaxGracefulMs:
			f.fail(fmt.Errorf("`timeoutMs` is %d, the limit is %d", *p.TimeoutMs, MaxGracefulMs))
		}
	})
	return p, err
}

// TerminateResult is the answer to process/terminate.
type TerminateResult struct {
	Running bool `json:"running"`
}
