package client

import (
	"fmt"
	"strings"

	"execserver/protocol"
)

// EventKind tells what an Event is.
type EventKind byte

// The kinds of event. A process has output, then one exited; output that
// descendants of it write may follow; closed is the last.
const (
	Output EventKind = iota + 1
	Exited
	Closed
)

func (k EventKind) String() string {
	switch k {
	case Output:
		return "output"
	case Exited:
		return "exited"
	case Closed:
		return "closed"
	}
	return fmt.Sprintf("EventKind(%d)", byte(k))
}

// The streams of a process, as Event.Stream names them.
const (
	Stdout = "stdout"
	Stderr = "stderr"
	PTY    = "pty" // everything, on a terminal
)

// Event is one numbered event in the life of a process (PROTOCOL.md,
// "process/output" and "exited and closed"). Numbers start at 1 and have no
// gaps.
type Event struct {
	Kind   EventKind
	Seq    uint64
	Stream string // Output
	Data   []byte // Output; shared, must not be changed
	Exit   *Exit  // Exited
}

// Exit is how a process ended: what the server says, no more (PROTOCOL.md, "Exit
// record").
type Exit struct {
	protocol.ExitRecord
	SandboxDenied bool `json:"sandboxDenied"`
}

// Success reports whether the process ended by itself with exit code 0.
func (e *Exit) Success() bool { return e.ExitCode == 0 && e.Signal == "" }

// String is "exit status 1", or "signal: SIGKILL", and what else is known.
func (e *Exit) String() string {
	text := fmt.Sprintf("exit status %d", e.ExitCode)
	if e.Signal != "" {
		text = "signal: " + e.Signal
	}
	var more []string
	if e.CoreDumped {
		more = append(more, "core dumped")
	}
	if e.OOMKilled {
		more = append(more, "out of memory")
	}
	switch e.EndedBy {
	case "", protocol.EndedBySelf, protocol.EndedByClient:
	case protocol.EndedByTimeout:
		more = append(more, "ended by its time limit")
	case protocol.EndedByOutputLimit:
		more = append(more, "ended by its output limit")
	default:
		more = append(more, "ended by "+string(e.EndedBy))
	}
	if e.SandboxDenied {
		more = append(more, "denied by the sandbox")
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return text
}
