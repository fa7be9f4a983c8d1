package protocol

import (
	"encoding/json"
	"strconv"

	"execserver/internal/base64"
)

// Chunk is a piece of output. Data belongs to whoever made the Chunk and is not
// changed any more.
type Chunk struct {
	Seq    uint64
	Stream string
	Data   []byte
}

// AppendJSON implements Appender.
func (c Chunk) AppendJSON(b []byte) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, c.Seq, 10)
	b = append(b, `,"stream":"`...)
	b = append(b, c.Stream...)
	b = append(b, `","chunk":"`...)
	b = base64.AppendEncode(b, c.Data)
	return append(b, `"}`...)
}

// ReadResult is the answer to process/read. FirstSeq and DroppedBytes are sent
// only when output was evicted: the number of the oldest output still held, and
// how many bytes went before it.
type ReadResult struct {
	Chunks        []Chunk
	NextSeq       uint64
	Exited        bool
	Exit          *ExitRecord // nil unless Exited
	Closed        bool
	Failure       *string
	SandboxDenied bool
	FirstSeq      uint64
	DroppedBytes  uint64
}

// EncodedLen is about how many bytes the answer takes on the wire.
func (r *ReadResult) EncodedLen() int {
	n := 512
	for _, c := range r.Chunks {
		n += base64.EncodedLen(len(c.Data)) + 64
	}
	return n
}

// AppendJSON implements Appender.
func (r *ReadResult) AppendJSON(b []byte) []byte {
	b = appendChunks(append(b, '{'), r.Chunks, r.NextSeq)
	b = append(b, `,"exited":`...)
	b = strconv.AppendBool(b, r.Exited)
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
	b = strconv.AppendBool(b, r.SandboxDenied)
	b = appendDropped(b, r.FirstSeq, r.DroppedBytes)
	return append(b, '}')
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

// appendDropped appends the members that tell of evicted output, if there is any.
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
	b = append(b, `{"method":"process/output","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, c.Seq, 10)
	b = append(b, `,"stream":"`...)
	b = append(b, c.Stream...)
	b = append(b, `","chunk":"`...)
	b = base64.AppendEncode(b, c.Data)
	return append(b, `"}}`...)
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

// AppendStarted appends the notification process/started; startedAtMs is Unix
// milliseconds.
func AppendStarted(b []byte, processID string, pid int, startedAtMs int64) []byte {
	b = append(b, `{"method":"process/started","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"pid":`...)
	b = strconv.AppendInt(b, int64(pid), 10)
	b = append(b, `,"startedAtMs":`...)
	b = strconv.AppendInt(b, startedAtMs, 10)
	return append(b, `}}`...)
}

// AppendFailed appends the notification process/failed; omitted is how many
// earlier ones are not sent.
func AppendFailed(b []byte, processID string, e *Error, omitted uint64) []byte {
	b = append(b, `{"method":"process/failed","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"error":`...)
	b = e.appendJSON(b)
	if omitted > 0 {
		b = append(b, `,"omitted":`...)
		b = strconv.AppendUint(b, omitted, 10)
	}
	return append(b, `}}`...)
}

// AppendDropped appends the notification process/dropped: the event firstSeq
// follows the last one on this connection, and droppedBytes of output between
// them are gone.
func AppendDropped(b []byte, processID string, firstSeq, droppedBytes uint64) []byte {
	b = append(b, `{"method":"process/dropped","params":{"processId":`...)
	b = appendString(b, processID)
	b = append(b, `,"firstSeq":`...)
	b = strconv.AppendUint(b, firstSeq, 10)
	b = append(b, `,"droppedBytes":`...)
	b = strconv.AppendUint(b, droppedBytes, 10)
	return append(b, `}}`...)
}

// Output are the params of process/output, for receivers.
type Output struct {
	ProcessID string
	Chunk
}

// DecodeOutput decodes the params of process/output. Data is a copy.
func DecodeOutput(raw json.RawMessage) (p Output, err error) {
	err = decodeParams(raw, "ExecOutputDeltaNotification", func(f *fields) {
		p.ProcessID = f.string("processId")
		p.Seq = f.unsigned("seq")
		p.Stream = f.string("stream")
		p.Data = f.base64("chunk")
	})
	return p, err
}
