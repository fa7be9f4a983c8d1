package protocol

import "strconv"

// MethodReadBackground reads the output that descendants of a closed process write
// (PROTOCOL.md, "process/readBackground"). Its params are those of process/read.
const MethodReadBackground = "process/readBackground"

// ReadBackgroundResult is the answer to process/readBackground. FirstSeq and
// DroppedBytes are sent only when output was evicted, as in ReadResult.
type ReadBackgroundResult struct {
	Chunks       []Chunk `json:"chunks"`
	NextSeq      uint64  `json:"nextSeq"`
	Closed       bool    `json:"closed"` // no process holds the streams any more
	FirstSeq     uint64  `json:"firstSeq"`
	DroppedBytes uint64  `json:"droppedBytes"`
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
