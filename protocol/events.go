package protocol

import (
	"encoding/json"
	"strconv"
)

// Chunk is a piece of output. Data must not change after the Chunk was made.
type Chunk struct {
	Seq    uint64 `json:"seq"`
	Stream string `json:"stream"`
	Data   []byte `json:"chunk" wire:"bulk"`
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
	Chunks       []Chunk     `json:"chunks"`
	NextSeq      uint64      `json:"nextSeq"`
	Exit         *ExitRecord `json:"-"` // nil if the process has not exited
	Closed       bool        `json:"closed"`
	Failure      *string     `json:"failure"`
	FirstSeq     uint64      `json:"firstSeq"`
	DroppedBytes uint64      `json:"droppedBytes"`
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

// appendDropped appends the members about evicted output, if there is any.
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
	StartedAtMs int64  `json:"startedAtMs"` // Unix milliseconds
}

// Failed are the params of process/failed, the only notification about this process.
type Failed struct {
	ProcessID string `json:"processId"`
	Error     *Error `json:"error"`
	Omitted   uint64 `json:"omitted,omitempty"` // number of earlier notifications that were left out
}

// Dropped are the params of process/dropped: the event FirstSeq follows the last one on
// this connection, and the events between them held DroppedBytes of output.
type Dropped struct {
	ProcessID    string `json:"processId"`
	FirstSeq     uint64 `json:"firstSeq"`
	DroppedBytes uint64 `json:"droppedBytes"`
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
