package protocol

// Methods about recordings (PROTOCOL.md, "Recordings").
const (
	MethodRecordings    = "recording/list"
	MethodReadRecording = "recording/read"
)

// RecordingsParams are the params of recording/list.
type RecordingsParams struct {
	Before string `json:"before,omitempty" wire:"absent="` // list only older ones than this recording; "": all
}

// RecordingsResult is the answer to recording/list: recordings, the newest first.
type RecordingsResult struct {
	Recordings []ListedRecording `json:"recordings"`
	Next       string            `json:"next,omitempty"` // before of the request for more; "" if there are no more
}

// ListedRecording is one recording.
type ListedRecording struct {
	RecordingID   string   `json:"recordingId"`
	SessionID     string   `json:"sessionId"`
	SessionName   string   `json:"sessionName,omitempty"` // that it had when the process started
	ProcessID     string   `json:"processId"`
	Principal     string   `json:"principal,omitempty"` // whose session it was, unless it is the caller's
	Own           bool     `json:"own"`                 // it belongs to the caller's principal
	Argv          []string `json:"argv"`
	ArgvTruncated bool     `json:"argvTruncated,omitempty"`
	Cwd           string   `json:"cwd"` // native
	TTY           bool     `json:"tty"`
	Input         bool     `json:"input,omitempty"`     // it has the input, too
	Live          bool     `json:"live,omitempty"`      // the server is still writing it
	StartedAtMs   int64    `json:"startedAtMs"`         // Unix milliseconds
	EndedAtMs     int64    `json:"endedAtMs,omitempty"` // of the recording, unless it is live
	SizeBytes     int64    `json:"sizeBytes"`
}

// ReadRecordingParams are the params of recording/read.
type ReadRecordingParams struct {
	RecordingID string `json:"recordingId" wire:"identifier"`
	Offset      uint64 `json:"offset"`
	Len         uint64 `json:"len"`
}

// ReadRecordingResult is the answer to recording/read.
type ReadRecordingResult struct {
	Chunk []byte `json:"chunk"`
	EOF   bool   `json:"eof"`            // the recording has nothing after the chunk now
	Live  bool   `json:"live,omitempty"` // the server is still writing it
}
