package client

import (
	"encoding/json"
	"strconv"

	"execserver/internal/base64"
	"execserver/protocol"
)

// What a client sends and receives, where package protocol has the server's
// side only.

// initializeResult is the answer to initialize.
type initializeResult struct {
	SessionID       string    `json:"sessionId"`
	EnvironmentInfo *wireInfo `json:"environmentInfo"`
}

// startRequest is what a backend starts: the params of process/start, and what
// they say in a form that needs no decoding.
type startRequest struct {
	protocol.Start
	dir    string // Cwd, which only a link sets
	limits Limits // StartLimits
	drop   bool   // nobody will want the output; a link has no word for it
}

// readResult is the answer to process/read.
type readResult struct {
	protocol.ReadResult
	exit *Exit // nil: not exited
}

// decodeRead decodes the answer to process/read.
func decodeRead(raw json.RawMessage) (*readResult, error) {
	var w struct {
		Chunks []struct {
			Seq    uint64 `json:"seq"`
			Stream string `json:"stream"`
			Chunk  []byte `json:"chunk"`
		} `json:"chunks"`
		NextSeq      uint64  `json:"nextSeq"`
		Exited       bool    `json:"exited"`
		Closed       bool    `json:"closed"`
		Failure      *string `json:"failure"`
		FirstSeq     uint64  `json:"firstSeq"`
		DroppedBytes uint64  `json:"droppedBytes"`
		Exit
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, err
	}
	r := &readResult{ReadResult: protocol.ReadResult{
		Chunks: make([]protocol.Chunk, len(w.Chunks)), NextSeq: w.NextSeq, Exited: w.Exited, Closed: w.Closed,
		Failure: w.Failure, FirstSeq: w.FirstSeq, DroppedBytes: w.DroppedBytes,
	}}
	for i, c := range w.Chunks {
		r.Chunks[i] = protocol.Chunk{Seq: c.Seq, Stream: c.Stream, Data: c.Chunk}
	}
	if w.Exited {
		r.exit = &w.Exit
	}
	return r, nil
}

// writeParams are the params of process/write.
type writeParams struct {
	id, writeID string
	data        []byte
}

// AppendJSON implements protocol.Appender.
func (p writeParams) AppendJSON(b []byte) []byte {
	b = append(b, `{"processId":`...)
	b = strconv.AppendQuote(b, p.id) // ours, ASCII
	b = append(b, `,"writeId":`...)
	b = strconv.AppendQuote(b, p.writeID)
	b = append(b, `,"chunk":"`...)
	b = base64.AppendEncode(b, p.data)
	return append(b, `"}`...)
}

// decodeEvent decodes the notifications about processes; ok is false for all
// others.
func decodeEvent(method string, params json.RawMessage) (id string, e Event, ok bool, err error) {
	switch method {
	case protocol.NotificationOutput:
		output, err := protocol.DecodeOutput(params)
		return output.ProcessID, Event{Kind: Output, Seq: output.Seq, Stream: output.Stream, Data: output.Data}, true, err
	case protocol.NotificationExited, protocol.NotificationClosed:
		var w struct {
			ProcessID string `json:"processId"`
			Seq       uint64 `json:"seq"`
			Exit
		}
		err := json.Unmarshal(params, &w)
		if method == protocol.NotificationClosed {
			return w.ProcessID, Event{Kind: Closed, Seq: w.Seq}, true, err
		}
		return w.ProcessID, Event{Kind: Exited, Seq: w.Seq, Exit: &w.Exit}, true, err
	}
	return "", Event{}, false, nil
}
