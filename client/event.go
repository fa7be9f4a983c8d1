package client

import (
	"fmt"
	"strings"

	"execserver/protocol"
)

// EventKind is the kind of an Event.
type EventKind byte

// The kinds of event (PROTOCOL.md, "process/output" and "exited and closed"). Every
// process has exactly one Exited and one Closed, which is its last event. Output of
// descendants may lie between the two.
const (
	Output EventKind = iota + 1 // a piece of output
	Exited                      // the process has ended
	Closed                      // all output has been delivered
)

// String returns the name of the kind in the protocol: "output", "exited" or "closed".
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

// The streams of a process, as in Event.Stream.
const (
	Stdout = protocol.Stdout
	Stderr = protocol.Stderr
	PTY    = protocol.PTY // a terminal, which has standard output and standard error
)

// Event is one event of a process.
type Event struct {
	Kind EventKind
	Seq  uint64 // the number of the event; numbers start at 1 and have no gaps

	// Stream and Data are set for Output: Stdout, Stderr or PTY, and what the process
	// wrote. All readers of the event share Data, and must not change it.
	Stream string
	Data   []byte

	Exit *Exit // set for Exited; shared, too
}

// Exit says how a process ended, as the server reports it (PROTOCOL.md, "Exit record").
//
// ExitCode is the process's own, 128+n if signal n killed it, or -1 if the server did not
// learn it. The zero value of every other field means no, or unknown. Signal is the signal
// that killed the process, such as "SIGKILL", and CoreDumped says that it left a core dump.
// EndedBy says who ended it: "self", "client" (Terminate or Signal), "timeout" or
// "outputLimit" (Limits), "sessionExpired" or "serverShutdown". OOMKilled says that the
// kernel killed the process or a descendant for lack of memory. Rusage is the time and
// memory that they used. SandboxDenied says that a sandbox seems to have denied them
// something.
type Exit struct{ protocol.ExitRecord }

// exitOf returns nil for a process that has not exited.
func exitOf(r *protocol.ExitRecord) *Exit {
	if r == nil {
		return nil
	}
	return &Exit{*r}
}

// Success reports whether the process exited by itself with exit code 0.
func (e *Exit) Success() bool { return e.ExitCode == 0 && e.Signal == "" }

// String returns "exit status 1" or "signal: SIGKILL", followed by details in parentheses:
// "signal: SIGKILL (out of memory)".
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
