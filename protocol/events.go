package protocol

import (
	"encoding/json"
	"strconv"
)

// Chunk is a piece of output. Data must not change after the Chunk was made.
type Chunk struct {
	Seq    uint64 `json:"seq"`
	Stream string `json:"stream"`
	Data   []byte `json:"chunk" wire:"bulk"` // the output
}

// AppendJSON implements Appender.
func (c Chunk) AppendJSON(b []byte) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, c.Seq, 10)
	b = append(b, `,"stream":"`...)
	b = append(b, c.Stream...)
	b = append(b, `","chunk":"`...)
	b = AppendBase64(b, c.Data)
	return append(b, `"}`...)
}

// ReadResult is the answer to process/read. FirstSeq, the number of the oldest retained
// output, and DroppedBytes, the number of bytes before it, are sent only when output was
// evicted.
type ReadResult struct {
	Chunks       []Chunk     `json:"chunks"` // the retained output with numbers above afterSeq
	NextSeq      uint64      `json:"nextSeq"`
	Exit         *ExitRecord `json:"-"` // nil if the process has not exited
	Closed       bool        `json:"closed"`
	Failure      *string     `json:"failure"`      // always null
	FirstSeq     uint64      `json:"firstSeq"`     // the number of the oldest retained output
	DroppedBytes uint64      `json:"droppedBytes"` // the bytes of output that the server evicted
}

// EncodedLen returns the approximate size of the answer on the wire in bytes.
func (r *ReadResult) EncodedLen() int { return 512 + chunksLen(r.Chunks) }

// AppendJSON implements Appender.
func (r *ReadResult) AppendJSON(b []byte) []byte {
	b = appendChunks(append(b, '{'), r.Chunks, r.NextSeq)
	b = append(b, `,"exited":`...)
	b = strconv.AppendBool(b, r.Exit != nil)
	b = appendExit(b, r.Exit)
	b = append(b, `,"closed":`...)
	b = strconv.AppendBool(b, r.Closed)
	b = append(b, `,"failure":`...)
	if r.Failure == nil {
		b = append(b, `null`...)
	} else {
		b = appendString(b, *r.Failure)
	}
	b = append(b, `,"sandboxDenied":`...)
	b = strconv.AppendBool(b, r.Exit != nil && r.Exit.SandboxDenied)
	b = appendDropped(b, r.FirstSeq, r.DroppedBytes)
	return append(b, '}')
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *ReadResult) UnmarshalJSON(text []byte) error {
	type plain ReadResult
	wire := struct {
		*plain
		Exited bool `json:"exited"`
		ExitRecord
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(text, &wire); err != nil {
		return err
	}
	if wire.Exited {
		r.Exit = &wire.ExitRecord
	}
	return nil
}

func chunksLen(chunks []Chunk) (n int) {
	for _, c := range chunks {
		n += Base64Len(len(c.Data)) + 64
	}
	return n
}

// appendChunks appends the members that hold output, the first without a comma.
func appendChunks(b []byte, chunks []Chunk, nextSeq uint64) []byte {
	b = append(b, `"chunks":[`...)
	for i, c := range chunks {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.AppendJSON(b)
	}
	b = append(b, `],"nextSeq":`...)
	return strconv.AppendUint(b, nextSeq, 10)
}

// appendDropped appends the members about evicted output, if any.
func appendDropped(b []byte, firstSeq, droppedBytes uint64) []byte {
	if droppedBytes == 0 {
		return b
	}
	b = append(b, `,"firstSeq":`...)
	b = strconv.AppendUint(b, firstSeq, 10)
	b = append(b, `,"droppedBytes":`...)
	return strconv.AppendUint(b, droppedBytes, 10)
}

// AppendOutput appends the notification process/output.
func AppendOutput(b []byte, processID string, c Chunk) []byte {
	b = appendOutputHead(b, processID, c)
	b = append(b, `,"chunk":"`...)
	b = AppendBase64(b, c.Data)
	return append(b, `"}}`...)
}

// AppendBinaryOutput appends the notification process/output as a binary message.
func AppendBinaryOutput(b []byte, processID string, c Chunk) []byte {
	var space [256]byte
	head := appendOutputHead(space[:0], processID, c)
	return AppendBinary(b, append(head, `}}`...), c.Data)
}

// appendOutputHead appends the notification up to its chunk.
func appendOutputHead(b []byte, processID string, c Chunk) []byte {
	b = append(b, `{"method":"process/output","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, c.Seq, 10)
	b = append(b, `,"stream":"`...)
	b = append(b, c.Stream...)
	return append(b, '"')
}

// AppendExited appends the notification process/exited.
func AppendExited(b []byte, processID string, seq uint64, exit ExitRecord) []byte {
	b = append(b, `{"method":"process/exited","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, seq, 10)
	b = appendExit(b, &exit)
	b = append(b, `,"sandboxDenied":`...)
	b = strconv.AppendBool(b, exit.SandboxDenied)
	return append(b, `}}`...)
}

// AppendClosed appends the notification process/closed.
func AppendClosed(b []byte, processID string, seq uint64) []byte {
	b = append(b, `{"method":"process/closed","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, seq, 10)
	return append(b, `}}`...)
}

// Started are the params of process/started.
type Started struct {
	ProcessID   string `json:"processId"`
	Pid         int    `json:"pid"`
	StartedAtMs int64  `json:"startedAtMs"` // in Unix milliseconds
}

// Failed are the params of process/failed, the only notification about this process.
type Failed struct {
	ProcessID string `json:"processId"`
	Error     *Error `json:"error"`             // why the process could not be started
	Omitted   uint64 `json:"omitted,omitempty"` // the number of earlier notifications that the server left out
}

// Dropped are the params of process/dropped: the event FirstSeq follows the last one on
// this connection, and the events between them held DroppedBytes of output.
type Dropped struct {
	ProcessID    string `json:"processId"`
	FirstSeq     uint64 `json:"firstSeq"`     // the number of the next event that the server sends
	DroppedBytes uint64 `json:"droppedBytes"` // the bytes of output that the events before it held
}

// AppendStarted appends the notification process/started; startedAtMs is Unix
// milliseconds.
func AppendStarted(b []byte, processID string, pid int, startedAtMs int64) []byte {
	return appendSmall(b, NotificationStarted, Started{processID, pid, startedAtMs})
}

// AppendFailed appends the notification process/failed. omitted is the number of earlier
// ones that were left out.
func AppendFailed(b []byte, processID string, e *Error, omitted uint64) []byte {
	return appendSmall(b, NotificationFailed, Failed{processID, e, omitted})
}

// AppendDropped appends the notification process/dropped.
func AppendDropped(b []byte, processID string, firstSeq, droppedBytes uint64) []byte {
	return appendSmall(b, NotificationDropped, Dropped{processID, firstSeq, droppedBytes})
}

// appendSmall appends a notification whose params always encode.
func appendSmall(b []byte, method string, params any) []byte {
	b, err := AppendNotification(b, method, params)
	if err != nil {
		panic("protocol: " + err.Error())
	}
	return b
}

// Exited are the params of process/exited, for receivers.
type Exited struct {
	ProcessID string `json:"processId"`
	Seq       uint64 `json:"seq"`
	ExitRecord
}

// Closed are the params of process/closed, for receivers.
type Closed struct {
	ProcessID string `json:"processId"`
	Seq       uint64 `json:"seq"`
}

// Output are the params of process/output, for receivers. DecodeParams copies Data.
type Output struct {
	ProcessID string `json:"processId"`
	Chunk
}

// ExitRecord describes how a process ended (EXTENSIONS.md, "Exit record"). Several messages
// contain its members. Unknown members are absent.
type ExitRecord struct {
	ExitCode   int     `json:"exitCode"`             // its own, 128 plus n for signal n, or -1 if the system did not report it
	Signal     string  `json:"signal,omitempty"`     // the signal that killed it, such as SIGKILL
	CoreDumped bool    `json:"coreDumped,omitempty"` // it left a core dump
	EndedBy    EndedBy `json:"endedBy,omitempty"`    // who or what ended it
	OOMKilled  bool    `json:"oomKilled,omitempty"`  // the kernel killed the process or a descendant for lack of memory
	Rusage     *Rusage `json:"rusage,omitempty"`     // absent if unknown

	// SandboxDenied is set if the process seems to have failed because of its sandbox. In
	// process/exited and process/read it is not part of the record, but next to it.
	SandboxDenied bool `json:"sandboxDenied,omitempty"`
}

// EndedBy is the cause of the end of a process.
type EndedBy string

// The values of EndedBy.
const (
	EndedBySelf           EndedBy = "self"           // it exited, or a signal of somebody else killed it
	EndedByClient         EndedBy = "client"         // process/terminate, or a signal that the client sent
	EndedByTimeout        EndedBy = "timeout"        // the limit timeoutMs
	EndedByOutputLimit    EndedBy = "outputLimit"    // the limit maxOutputBytes
	EndedBySessionExpired EndedBy = "sessionExpired" // the end of its session
	EndedByServerShutdown EndedBy = "serverShutdown" // the end of the server
)

// Rusage is the resources that a process and its reaped descendants have used.
// MaxRSSBytes is 0 if unknown.
type Rusage struct {
	UserMs      int64 `json:"userMs"`                // processor time in user mode
	SystemMs    int64 `json:"systemMs"`              // processor time in the kernel
	MaxRSSBytes int64 `json:"maxRssBytes,omitempty"` // the largest resident memory; absent if unknown
}

// exitMembers are the members of an exit record in another object. Without a record, the
// exit code is null and the others are absent.
type exitMembers struct {
	ExitCode *int `json:"exitCode"`
	*ExitRecord
}

func exitMembersOf(r *ExitRecord) exitMembers {
	if r == nil {
		return exitMembers{}
	}
	record := *r
	record.SandboxDenied = false
	return exitMembers{&record.ExitCode, &record}
}

// record returns the exit record, or nil if the process has not exited.
func (m exitMembers) record() *ExitRecord {
	if m.ExitCode == nil {
		return nil
	}
	r := new(ExitRecord)
	if m.ExitRecord != nil {
		r = m.ExitRecord
	}
	r.ExitCode = *m.ExitCode
	return r
}

// appendExit appends the members of an exit record, each after a comma.
func appendExit(b []byte, r *ExitRecord) []byte {
	text, err := json.Marshal(exitMembersOf(r))
	if err != nil {
		panic("protocol: strings and numbers always encode: " + err.Error())
	}
	b = append(b, ',')
	return append(b, text[1:len(text)-1]...)
}
