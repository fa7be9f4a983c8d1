package protocol

import (
	"encoding/json"
	"strconv"

	"execserver/internal/base64"
)

// Methods that look at processes without changing them (PROTOCOL.md,
// "process/wait", "process/snapshot", "process/list").
const (
	MethodWait     = "process/wait"
	MethodSnapshot = "process/snapshot"
	MethodList     = "process/list"
)

// Wait are the params of process/wait; without WaitMs it waits until the process
// has exited.
type Wait struct {
	ProcessID string  `json:"processId"`
	WaitMs    *uint64 `json:"waitMs,omitempty"`
}

// DecodeWait decodes the params of process/wait.
func DecodeWait(raw json.RawMessage) (p Wait, err error) {
	err = decodeParams(raw, "WaitParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.WaitMs = f.optionalUnsigned("waitMs")
	})
	return p, err
}

// WaitResult is the answer to process/wait.
type WaitResult struct {
	Exit   *ExitRecord // nil: not exited
	Closed bool
}

// AppendJSON implements Appender.
func (r WaitResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"exited":`...)
	b = strconv.AppendBool(b, r.Exit != nil)
	b = append(b, `,"closed":`...)
	b = strconv.AppendBool(b, r.Closed)
	b = appendExit(b, r.Exit)
	return append(b, '}')
}

// Snapshot are the params of process/snapshot; MaxBytes is a bound for each
// stream.
type Snapshot struct {
	ProcessID string  `json:"processId"`
	MaxBytes  *uint64 `json:"maxBytes,omitempty"`
}

// DecodeSnapshot decodes the params of process/snapshot.
func DecodeSnapshot(raw json.RawMessage) (p Snapshot, err error) {
	err = decodeParams(raw, "SnapshotParams", func(f *fields) {
		p.ProcessID = f.identifier("processId")
		p.MaxBytes = f.optionalUnsigned("maxBytes")
	})
	return p, err
}

// SnapshotResult is the answer to process/snapshot. A stream that the process
// does not have is nil.
type SnapshotResult struct {
	Exit                     *ExitRecord // nil: running
	Closed                   bool
	NextSeq                  uint64 // of the first event that the snapshot does not hold
	Stdout, Stderr, Terminal *StreamSnapshot
}

// StreamSnapshot is the beginning and the end of one stream. When nothing is
// omitted between them, Head is all of it and Tail is empty.
type StreamSnapshot struct {
	Head, Tail   []byte
	OmittedBytes uint64 // between Head and Tail
	TotalBytes   uint64 // ever written
}

// AppendJSON implements Appender.
func (r *SnapshotResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"running":`...)
	b = strconv.AppendBool(b, r.Exit == nil)
	b = append(b, `,"closed":`...)
	b = strconv.AppendBool(b, r.Closed)
	b = append(b, `,"nextSeq":`...)
	b = strconv.AppendUint(b, r.NextSeq, 10)
	b = r.Stdout.appendMember(b, "stdout")
	b = r.Stderr.appendMember(b, "stderr")
	b = r.Terminal.appendMember(b, "terminal")
	var omitted uint64
	for _, s := range []*StreamSnapshot{r.Stdout, r.Stderr, r.Terminal} {
		if s != nil {
			omitted += s.OmittedBytes
		}
	}
	b = append(b, `,"truncated":`...)
	b = strconv.AppendBool(b, omitted > 0)
	b = append(b, `,"omittedBytes":`...)
	b = strconv.AppendUint(b, omitted, 10)
	b = appendExit(b, r.Exit)
	return append(b, '}')
}

func (s *StreamSnapshot) appendMember(b []byte, name string) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	if s == nil {
		return append(b, `":null`...)
	}
	b = append(b, `":{"head":"`...)
	b = base64.AppendEncode(b, s.Head)
	b = append(b, `","tail":"`...)
	b = base64.AppendEncode(b, s.Tail)
	b = append(b, `","omittedBytes":`...)
	b = strconv.AppendUint(b, s.OmittedBytes, 10)
	b = append(b, `,"totalBytes":`...)
	b = strconv.AppendUint(b, s.TotalBytes, 10)
	return append(b, '}')
}

// ListResult is the answer to process/list: the processes in the order of their
// starts, and then what closed ones have left running.
type ListResult struct {
	Processes  []ListedProcess
	Background []BackgroundProcess
}

// BackgroundProcess is something that a closed process of the session has left
// running. Its state is StateBackground.
type BackgroundProcess struct {
	ProcessID       string // its own, for process/signal and process/terminate
	ParentProcessID string // of the closed process; "" when that is not known
	Pid             int
	Argv            []string // as it shows it, cut where it is long
	ArgvTruncated   bool
}

// ListedProcess is one process of a session.
type ListedProcess struct {
	ProcessID     string
	Pid           int
	Argv          []string // cut where it is long
	ArgvTruncated bool
	Cwd           Path
	TTY           bool
	StartedAtMs   int64 // Unix milliseconds
	State         ProcessState
	NextSeq       uint64
	RetainedBytes uint64 // of output
	StdinClosed   bool
	Exit          *ExitRecord // nil: running
	Background    *BackgroundOutput
}

// BackgroundOutput is what descendants write to the streams of a closed process.
// It is nil where none held them when the process closed.
type BackgroundOutput struct {
	NextSeq       uint64
	RetainedBytes uint64
	Closed        bool // nobody holds the streams any more
}

// ProcessState says how far a process is.
type ProcessState string

// The values of ProcessState.
const (
	StateRunning ProcessState = "running"
	StateExited  ProcessState = "exited" // something still holds its output
	StateClosed  ProcessState = "closed"

	StateBackground ProcessState = "background" // of a BackgroundProcess
)

// AppendJSON implements Appender.
func (r ListResult) AppendJSON(b []byte) []byte {
	b = append(b, `{"processes":[`...)
	for i := range r.Processes {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.Processes[i].appendJSON(b)
	}
	for i := range r.Background {
		if i > 0 || len(r.Processes) > 0 {
			b = append(b, ',')
		}
		b = r.Background[i].appendJSON(b)
	}
	return append(b, `]}`...)
}

// EncodedLen is about how many bytes the answer takes on the wire.
func (r ListResult) EncodedLen() int {
	n := 32
	for i := range r.Processes {
		n += r.Processes[i].encodedLen()
	}
	for i := range r.Background {
		p := &r.Background[i]
		n += 128 + len(p.ProcessID) + len(p.ParentProcessID) + argvLen(p.Argv)
	}
	return n
}

func (p *ListedProcess) appendJSON(b []byte) []byte {
	b = append(b, `{"processId":`...)
	b = appendString(b, p.ProcessID)
	b = appendProgram(b, p.Pid, p.Argv, p.ArgvTruncated)
	b = append(b, `,"cwd":`...)
	b = appendString(b, p.Cwd.String())
	b = append(b, `,"tty":`...)
	b = strconv.AppendBool(b, p.TTY)
	b = append(b, `,"startedAtMs":`...)
	b = strconv.AppendInt(b, p.StartedAtMs, 10)
	b = append(b, `,"state":"`...)
	b = append(b, p.State...)
	b = append(b, `","nextSeq":`...)
	b = strconv.AppendUint(b, p.NextSeq, 10)
	b = append(b, `,"retainedBytes":`...)
	b = strconv.AppendUint(b, p.RetainedBytes, 10)
	b = append(b, `,"stdinClosed":`...)
	b = strconv.AppendBool(b, p.StdinClosed)
	b = appendExit(b, p.Exit)
	if o := p.Background; o != nil {
		b = append(b, `,"background":{"nextSeq":`...)
		b = strconv.AppendUint(b, o.NextSeq, 10)
		b = append(b, `,"retainedBytes":`...)
		b = strconv.AppendUint(b, o.RetainedBytes, 10)
		b = append(b, `,"closed":`...)
		b = strconv.AppendBool(b, o.Closed)
		b = append(b, '}')
	}
	return append(b, '}')
}

func (p *ListedProcess) encodedLen() int {
	return 512 + len(p.ProcessID) + len(p.Cwd.String()) + argvLen(p.Argv)
}

func (p *BackgroundProcess) appendJSON(b []byte) []byte {
	b = append(b, `{"processId":`...)
	b = appendString(b, p.ProcessID)
	if p.ParentProcessID != "" {
		b = append(b, `,"parentProcessId":`...)
		b = appendString(b, p.ParentProcessID)
	}
	b = appendProgram(b, p.Pid, p.Argv, p.ArgvTruncated)
	b = append(b, `,"state":"`...)
	b = append(b, StateBackground...)
	return append(b, `"}`...)
}

// appendProgram appends the members that tell what runs, each after a comma.
func appendProgram(b []byte, pid int, argv []string, truncated bool) []byte {
	b = append(b, `,"pid":`...)
	b = strconv.AppendInt(b, int64(pid), 10)
	b = append(b, `,"argv":[`...)
	for i, arg := range argv {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, arg)
	}
	b = append(b, ']')
	if truncated {
		b = append(b, `,"argvTruncated":true`...)
	}
	return b
}

func argvLen(argv []string) (n int) {
	for _, arg := range argv {
		n += len(arg) + 3
	}
	return n
}
