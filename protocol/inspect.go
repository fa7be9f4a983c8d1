package protocol

import "encoding/json"

// Methods that read the state of processes (PROTOCOL.md, "process/wait",
// "process/snapshot", "process/list").
const (
	MethodWait     = "process/wait"
	MethodSnapshot = "process/snapshot"
	MethodList     = "process/list"
)

// WaitParams are the params of process/wait. Without WaitMs it waits until the process
// has exited.
type WaitParams struct {
	ProcessID string  `json:"processId" wire:"identifier"`
	WaitMs    *uint64 `json:"waitMs,omitempty"`
}

// WaitResult is the answer to process/wait.
type WaitResult struct {
	Exit   *ExitRecord // nil if the process has not exited
	Closed bool
}

type wireWait struct {
	Exited bool `json:"exited"`
	Closed bool `json:"closed"`
	exitMembers
}

// MarshalJSON implements json.Marshaler.
func (r WaitResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireWait{r.Exit != nil, r.Closed, exitMembersOf(r.Exit)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *WaitResult) UnmarshalJSON(text []byte) error {
	var wire wireWait
	err := json.Unmarshal(text, &wire)
	*r = WaitResult{wire.record(), wire.Closed}
	return err
}

// SnapshotParams are the params of process/snapshot. MaxBytes bounds each stream.
type SnapshotParams struct {
	ProcessID string  `json:"processId" wire:"identifier"`
	MaxBytes  *uint64 `json:"maxBytes,omitempty"`

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // nil means that of the connection
}

// SnapshotResult is the answer to process/snapshot. A stream that the process
// does not have is nil.
type SnapshotResult struct {
	Exit     *ExitRecord     `json:"-"` // nil while the process runs
	Closed   bool            `json:"closed"`
	NextSeq  uint64          `json:"nextSeq"` // of the first event that is not in the snapshot
	Stdout   *StreamSnapshot `json:"stdout"`
	Stderr   *StreamSnapshot `json:"stderr"`
	Terminal *StreamSnapshot `json:"terminal"`
}

// StreamSnapshot is the beginning and the end of one stream. If nothing is omitted, Head
// is all of it and Tail is empty.
type StreamSnapshot struct {
	Head         []byte `json:"head"`
	Tail         []byte `json:"tail"`
	OmittedBytes uint64 `json:"omittedBytes"` // between Head and Tail
	TotalBytes   uint64 `json:"totalBytes"`   // ever written
}

// MarshalJSON implements json.Marshaler. It encodes empty data as an empty string, not as
// null.
func (s *StreamSnapshot) MarshalJSON() ([]byte, error) {
	type plain StreamSnapshot
	wire := plain(*s)
	wire.Head, wire.Tail = orEmpty(wire.Head), orEmpty(wire.Tail)
	return json.Marshal(wire)
}

func orEmpty[S ~[]E, E any](s S) S {
	if s == nil {
		return S{}
	}
	return s
}

type plainSnapshot SnapshotResult

type wireSnapshot struct {
	Running bool `json:"running"`
	*plainSnapshot
	Truncated    bool   `json:"truncated"`
	OmittedBytes uint64 `json:"omittedBytes"`
	exitMembers
}

// MarshalJSON implements json.Marshaler.
func (r *SnapshotResult) MarshalJSON() ([]byte, error) {
	wire := wireSnapshot{Running: r.Exit == nil, plainSnapshot: (*plainSnapshot)(r), exitMembers: exitMembersOf(r.Exit)}
	for _, s := range []*StreamSnapshot{r.Stdout, r.Stderr, r.Terminal} {
		if s != nil {
			wire.OmittedBytes += s.OmittedBytes
		}
	}
	wire.Truncated = wire.OmittedBytes > 0
	return json.Marshal(wire)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *SnapshotResult) UnmarshalJSON(text []byte) error {
	wire := wireSnapshot{plainSnapshot: (*plainSnapshot)(r)}
	err := json.Unmarshal(text, &wire)
	r.Exit = wire.record()
	return err
}

// ListParams are the params of process/list, which may be absent or null.
type ListParams struct {
	All bool `json:"all,omitempty" wire:"absent=false"` // of all sessions that session/list lists
}

// decode accepts nothing but absent params, unless they have an "all": process/list had no
// params once.
func (p *ListParams) decode(raw json.RawMessage) error {
	if f, err := fieldsOf(raw); err == nil && f.get("all") != nil {
		f.into(p)
		return f.err
	}
	return new(NoParams).decode(raw)
}

// ListResult is the answer to process/list: the processes of each session in the order of
// their starts, then the background processes.
type ListResult struct {
	Processes  []ListedProcess
	Background []BackgroundProcess
	Truncated  bool // sessions are left out, because there were too many processes
}

// BackgroundProcess is a process that a closed process of the session left running. Its
// state is StateBackground.
type BackgroundProcess struct {
	SessionID       string       `json:"sessionId,omitempty"`       // in a list of all sessions
	ProcessID       string       `json:"processId"`                 // its own, for process/signal and process/terminate
	ParentProcessID string       `json:"parentProcessId,omitempty"` // id of the closed process; "" if unknown
	Pid             int          `json:"pid"`
	Argv            []string     `json:"argv"` // as the process shows it, shortened if long
	ArgvTruncated   bool         `json:"argvTruncated,omitempty"`
	State           ProcessState `json:"state"`
}

// ListedProcess is one process of a session.
type ListedProcess struct {
	SessionID     string            `json:"sessionId,omitempty"` // in a list of all sessions
	ProcessID     string            `json:"processId"`
	Pid           int               `json:"pid"`
	Argv          []string          `json:"argv"` // shortened if long
	ArgvTruncated bool              `json:"argvTruncated,omitempty"`
	Cwd           Path              `json:"cwd"`
	TTY           bool              `json:"tty"`
	StartedAtMs   int64             `json:"startedAtMs"` // Unix milliseconds
	State         ProcessState      `json:"state"`
	NextSeq       uint64            `json:"nextSeq"`
	RetainedBytes uint64            `json:"retainedBytes"` // of output
	StdinClosed   bool              `json:"stdinClosed"`
	Exit          *ExitRecord       `json:"-"` // nil while the process runs
	Background    *BackgroundOutput `json:"background,omitempty"`
}

// BackgroundOutput describes the output of descendants of a closed process. It is nil if
// none held the streams when the process closed.
type BackgroundOutput struct {
	NextSeq       uint64 `json:"nextSeq"`
	RetainedBytes uint64 `json:"retainedBytes"`
	Closed        bool   `json:"closed"` // no process holds the streams any more
}

type plainListed ListedProcess

type wireListed struct {
	*plainListed
	exitMembers
}

// MarshalJSON implements json.Marshaler.
func (p ListedProcess) MarshalJSON() ([]byte, error) {
	p.Argv = orEmpty(p.Argv)
	return json.Marshal(wireListed{(*plainListed)(&p), exitMembersOf(p.Exit)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *ListedProcess) UnmarshalJSON(text []byte) error {
	wire := wireListed{plainListed: (*plainListed)(p)}
	err := json.Unmarshal(text, &wire)
	p.Exit = wire.record()
	return err
}

// ProcessState is the state of a process.
type ProcessState string

// The values of ProcessState.
const (
	StateRunning ProcessState = "running"
	StateExited  ProcessState = "exited" // something still holds its output
	StateClosed  ProcessState = "closed"

	StateBackground ProcessState = "background" // of a BackgroundProcess
)

// MarshalJSON implements json.Marshaler. Both kinds are in one list.
func (r ListResult) MarshalJSON() ([]byte, error) {
	list := make([]any, 0, len(r.Processes)+len(r.Background))
	for i := range r.Processes {
		list = append(list, &r.Processes[i])
	}
	for _, left := range r.Background {
		left.Argv, left.State = orEmpty(left.Argv), StateBackground
		list = append(list, left)
	}
	wire := map[string]any{"processes": list}
	if r.Truncated {
		wire["truncated"] = true
	}
	return json.Marshal(wire)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *ListResult) UnmarshalJSON(text []byte) error {
	var wire struct {
		Processes []json.RawMessage `json:"processes"`
		Truncated bool              `json:"truncated"`
	}
	if err := json.Unmarshal(text, &wire); err != nil {
		return err
	}
	*r = ListResult{Truncated: wire.Truncated}
	for _, text := range wire.Processes {
		var left BackgroundProcess
		var listed ListedProcess
		err := json.Unmarshal(text, &left)
		if err == nil && left.State == StateBackground {
			r.Background = append(r.Background, left)
			continue
		}
		if err == nil {
			err = json.Unmarshal(text, &listed)
		}
		if err != nil {
			return err
		}
		r.Processes = append(r.Processes, listed)
	}
	return nil
}

// EncodedLen returns the approximate size of the answer on the wire in bytes.
func (r ListResult) EncodedLen() int {
	n := 32
	for _, p := range r.Processes {
		n += 512 + len(p.ProcessID) + len(p.Cwd.String()) + argvLen(p.Argv)
	}
	for _, p := range r.Background {
		n += 128 + len(p.ProcessID) + len(p.ParentProcessID) + argvLen(p.Argv)
	}
	return n
}

func argvLen(argv []string) (n int) {
	for _, arg := range argv {
		n += len(arg) + 3
	}
	return n
}
