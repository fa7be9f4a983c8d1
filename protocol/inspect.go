package protocol

import (
	"encoding/json"
	"strconv"
)

// Methods that read the state of processes (EXTENSIONS.md, "processWait", "processSnapshot",
// "processList").
const (
	MethodWait     = "process/wait"
	MethodSnapshot = "process/snapshot"
	MethodList     = "process/list"
)

// WaitParams are the params of process/wait. Without WaitMs it waits until the process
// has exited.
type WaitParams struct {
	ProcessID string  `json:"processId" wire:"identifier"`
	WaitMs    *uint64 `json:"waitMs,omitempty"` // the longest time to wait; nil means until the process has exited
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
	MaxBytes  *uint64 `json:"maxBytes,omitempty"` // the most that the answer may have of each stream

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // the session of the process; nil means that of the connection
}

// SnapshotResult is the answer to process/snapshot. A stream that the process
// does not have is nil.
type SnapshotResult struct {
	Exit     *ExitRecord     `json:"-"` // nil while the process runs
	Closed   bool            `json:"closed"`
	NextSeq  uint64          `json:"nextSeq"`  // the number of the first event that is not in the snapshot
	Stdout   *StreamSnapshot `json:"stdout"`   // null on a terminal
	Stderr   *StreamSnapshot `json:"stderr"`   // null on a terminal
	Terminal *StreamSnapshot `json:"terminal"` // null without a terminal
}

// StreamSnapshot is the beginning and the end of one stream. If nothing is omitted, Head is
// the whole stream and Tail is empty.
type StreamSnapshot struct {
	Head         []byte `json:"head"`         // the beginning
	Tail         []byte `json:"tail"`         // the end
	OmittedBytes uint64 `json:"omittedBytes"` // the bytes between Head and Tail
	TotalBytes   uint64 `json:"totalBytes"`   // the bytes ever written
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
	Truncated    bool   `json:"truncated"`    // bytes are missing in a stream
	OmittedBytes uint64 `json:"omittedBytes"` // the bytes that are missing in all streams
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
	All bool `json:"all,omitempty" wire:"absent=false"` // list those of all sessions that session/list lists
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
	SessionID       string       `json:"sessionId,omitempty"`       // only in a list of all sessions
	ProcessID       string       `json:"processId"`                 // an id of its own, for process/signal and process/terminate
	ParentProcessID string       `json:"parentProcessId,omitempty"` // the closed process that left it running; absent if unknown
	Pid             int          `json:"pid"`
	Argv            []string     `json:"argv"` // the beginning of the arguments that the process shows
	ArgvTruncated   bool         `json:"argvTruncated,omitempty"`
	State           ProcessState `json:"state"` // always StateBackground
}

// ListedProcess is one process of a session.
type ListedProcess struct {
	SessionID     string            `json:"sessionId,omitempty"` // only in a list of all sessions
	ProcessID     string            `json:"processId"`
	Pid           int               `json:"pid"`
	Argv          []string          `json:"argv"` // the beginning of the arguments
	ArgvTruncated bool              `json:"argvTruncated,omitempty"`
	Cwd           Path              `json:"cwd"`
	TTY           bool              `json:"tty"`
	StartedAtMs   int64             `json:"startedAtMs"` // in Unix milliseconds
	State         ProcessState      `json:"state"`
	NextSeq       uint64            `json:"nextSeq"`
	RetainedBytes uint64            `json:"retainedBytes"`        // the bytes of output that the server retains
	StdinClosed   bool              `json:"stdinClosed"`          // the server would refuse a write
	Exit          *ExitRecord       `json:"-"`                    // nil while the process runs
	Background    *BackgroundOutput `json:"background,omitempty"` // absent if no descendant held the streams when the process closed
}

// BackgroundOutput describes the output of descendants of a closed process. It is nil if
// none held the streams when the process closed.
type BackgroundOutput struct {
	NextSeq       uint64 `json:"nextSeq"`
	RetainedBytes uint64 `json:"retainedBytes"` // the bytes of output that the server retains
	Closed        bool   `json:"closed"`        // no process holds the streams any more
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
	StateRunning ProcessState = "running" // it has not exited
	StateExited  ProcessState = "exited"  // something still holds its output
	StateClosed  ProcessState = "closed"  // no more output follows

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

// MethodReadBackground reads the output that descendants of a closed process write
// (EXTENSIONS.md, "processReadBackground"). Its params are those of process/read.
const MethodReadBackground = "process/readBackground"

// ReadBackgroundResult is the answer to process/readBackground. FirstSeq and
// DroppedBytes are sent only when output was evicted, as in ReadResult.
type ReadBackgroundResult struct {
	Chunks       []Chunk `json:"chunks"` // the retained output with numbers above afterSeq
	NextSeq      uint64  `json:"nextSeq"`
	Closed       bool    `json:"closed"`       // no process holds the streams any more
	FirstSeq     uint64  `json:"firstSeq"`     // the number of the oldest retained output
	DroppedBytes uint64  `json:"droppedBytes"` // the bytes of output that the server evicted
}

// AppendJSON implements Appender.
func (r *ReadBackgroundResult) AppendJSON(b []byte) []byte {
	b = appendChunks(append(b, '{'), r.Chunks, r.NextSeq)
	b = append(b, `,"closed":`...)
	b = strconv.AppendBool(b, r.Closed)
	b = appendDropped(b, r.FirstSeq, r.DroppedBytes)
	return append(b, '}')
}

// EncodedLen returns the approximate size of the answer on the wire in bytes.
func (r *ReadBackgroundResult) EncodedLen() int { return 512 + chunksLen(r.Chunks) }

// MethodUsage returns the resource usage of processes (EXTENSIONS.md, "processUsage").
const MethodUsage = "process/usage"

// UsageParams are the params of process/usage.
type UsageParams struct {
	All bool `json:"all,omitempty" wire:"absent=false"` // report those of all sessions that session/list lists
}

// UsageResult is the answer to process/usage.
type UsageResult struct {
	Processes []ProcessUsage `json:"processes"`
	Truncated bool           `json:"truncated,omitempty"` // the server left out sessions, because there were too many processes
}

// ProcessUsageValues is the number of JSON values of a ProcessUsage.
const ProcessUsageValues = 6

// ProcessUsage is the resource usage of a process and its descendants.
type ProcessUsage struct {
	SessionID   string `json:"sessionId,omitempty"` // only in a list of all sessions
	ProcessID   string `json:"processId"`
	Processes   int    `json:"processes"`   // number of its running operating system processes
	CPUMs       int64  `json:"cpuMs"`       // processor time used so far
	MemoryBytes int64  `json:"memoryBytes"` // memory in use
}

// MethodScreen returns the terminal screen of a process (EXTENSIONS.md, "processScreen").
const MethodScreen = "process/screen"

// ScreenParams are the params of process/screen.
type ScreenParams struct {
	ProcessID string `json:"processId" wire:"identifier"`
	Styles    bool   `json:"styles,omitempty" wire:"absent=false"`  // ask for StyledRows
	Drawing   bool   `json:"drawing,omitempty" wire:"absent=false"` // ask for Drawing

	SessionID *string `json:"sessionId,omitempty" wire:"identifier"` // the session of the process; nil means that of the connection
}

// ScreenResult is the answer to process/screen.
type ScreenResult struct {
	Exit         *ExitRecord  `json:"-"` // nil while the process runs
	Closed       bool         `json:"closed"`
	NextSeq      uint64       `json:"nextSeq"`              // the number of the first event that the screen does not show
	Size         TerminalSize `json:"size"`                 // of the terminal
	Rows         []string     `json:"rows"`                 // the text of each row, without blanks at its end
	StyledRows   []string     `json:"styledRows,omitempty"` // the rows with colours and attributes, as SGR sequences
	Cursor       ScreenCursor `json:"cursor"`
	Title        string       `json:"title"`             // the title of the window
	Alternate    bool         `json:"alternate"`         // the alternate screen is shown
	OmittedBytes uint64       `json:"omittedBytes"`      // bytes of evicted output, which the screen does not reflect
	Drawing      []byte       `json:"drawing,omitempty"` // output that reproduces the state on another terminal
}

// ScreenCursor is the position of the cursor, counted from 0.
type ScreenCursor struct {
	Row     int  `json:"row"`     // counts from 0
	Col     int  `json:"col"`     // counts from 0
	Visible bool `json:"visible"` // the program shows the cursor
}

type plainScreen ScreenResult

type wireScreen struct {
	Running bool `json:"running"`
	*plainScreen
	exitMembers
}

// MarshalJSON implements json.Marshaler.
func (r *ScreenResult) MarshalJSON() ([]byte, error) {
	r.Rows = orEmpty(r.Rows)
	return json.Marshal(wireScreen{r.Exit == nil, (*plainScreen)(r), exitMembersOf(r.Exit)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *ScreenResult) UnmarshalJSON(text []byte) error {
	wire := wireScreen{plainScreen: (*plainScreen)(r)}
	err := json.Unmarshal(text, &wire)
	r.Exit = wire.record()
	return err
}

// Methods about recordings (EXTENSIONS.md, "recordings").
const (
	MethodRecordings    = "recording/list"
	MethodReadRecording = "recording/read"
)

// RecordingsParams are the params of recording/list.
type RecordingsParams struct {
	Before string `json:"before,omitempty" wire:"absent="` // list only recordings older than this one; absent means all
}

// RecordingsResult is the answer to recording/list: recordings, the newest first.
type RecordingsResult struct {
	Recordings []ListedRecording `json:"recordings"`     // the newest first
	Next       string            `json:"next,omitempty"` // the value of before for more; absent if there are no more
}

// ListedRecording is one recording.
type ListedRecording struct {
	RecordingID   string   `json:"recordingId"`
	SessionID     string   `json:"sessionId"`
	SessionName   string   `json:"sessionName,omitempty"` // the name of the session when the process started
	ProcessID     string   `json:"processId"`
	Principal     string   `json:"principal,omitempty"` // the owner of the session, unless it is the caller's
	Own           bool     `json:"own"`                 // it belongs to the caller's principal
	Argv          []string `json:"argv"`                // the beginning of the arguments
	ArgvTruncated bool     `json:"argvTruncated,omitempty"`
	Cwd           string   `json:"cwd"` // in the syntax of the operating system
	TTY           bool     `json:"tty"`
	Input         bool     `json:"input,omitempty"`     // it has the input, too
	Live          bool     `json:"live,omitempty"`      // the server is still writing it
	StartedAtMs   int64    `json:"startedAtMs"`         // in Unix milliseconds
	EndedAtMs     int64    `json:"endedAtMs,omitempty"` // the end of the recording in Unix milliseconds; absent if it is live
	SizeBytes     int64    `json:"sizeBytes"`           // of the recording so far
}

// ReadRecordingParams are the params of recording/read.
type ReadRecordingParams struct {
	RecordingID string `json:"recordingId" wire:"identifier"`
	Offset      uint64 `json:"offset"`
	Len         uint64 `json:"len"` // the number of bytes to read
}

// ReadRecordingResult is the answer to recording/read.
type ReadRecordingResult struct {
	Chunk []byte `json:"chunk"`
	EOF   bool   `json:"eof"`            // the recording has nothing after the chunk now
	Live  bool   `json:"live,omitempty"` // the server is still writing it
}
