package protocol

import (
	"encoding/json"
	"strconv"
)

// MethodReadBackground reads what descendants of a closed process write
// (PROTOCOL.md, "process/readBackground"). Its params are those of process/read.
const MethodReadBackground = "process/readBackground"

// ReadBackgroundResult is the answer to process/readBackground. FirstSeq and
// DroppedBytes are sent only when output was evicted, as in ReadResult.
type ReadBackgroundResult struct {
	Chunks       []Chunk
	NextSeq      uint64
	Closed       bool // nobody holds the streams any more
	FirstSeq     uint64
	DroppedBytes uint64
}

// AppendJSON implements Appender.
func (r *ReadBackgroundResult) AppendJSON(b []byte) []byte {
	b = appendChunks(append(b, '{'), r.Chunks, r.NextSeq)
	b = append(b, `,"closed":`...)
	b = strconv.AppendBool(b, r.Closed)
	b = appendDropped(b, r.FirstSeq, r.DroppedBytes)
	return append(b, '}')
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *ReadBackgroundResult) UnmarshalJSON(text []byte) error {
	var w struct {
		Chunks []struct {
			Seq    uint64 `json:"seq"`
			Stream string `json:"stream"`
			Chunk  []byte `json:"chunk"`
		} `json:"chunks"`
		NextSeq      uint64 `json:"nextSeq"`
		Closed       bool   `json:"closed"`
		FirstSeq     uint64 `json:"firstSeq"`
		DroppedBytes uint64 `json:"droppedBytes"`
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*r = ReadBackgroundResult{NextSeq: w.NextSeq, Closed: w.Closed, FirstSeq: w.FirstSeq, DroppedBytes: w.DroppedBytes}
	for _, c := range w.Chunks {
		r.Chunks = append(r.Chunks, Chunk{Seq: c.Seq, Stream: c.Stream, Data: c.Chunk})
	}
	return nil
}

// EncodedLen is about how many bytes the answer takes on the wire.
func (r *ReadBackgroundResult) EncodedLen() int {
	return (&ReadResult{Chunks: r.Chunks}).EncodedLen()
}
