package server

import (
	"execserver/internal/auth"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// Recorder records processes, and gives the recordings to clients.
type Recorder interface {
	session.Recorder

	// List serves recording/list with the recordings that the viewer sees. reserve waits
	// until the answer may use so many bytes.
	List(p protocol.RecordingsParams, viewer RecordingViewer, reserve func(bytes int) error) (protocol.RecordingsResult, error)
	// Read serves recording/read likewise.
	Read(p protocol.ReadRecordingParams, viewer RecordingViewer, reserve func(bytes int) error) (protocol.ReadRecordingResult, error)
	// Counts returns what was recorded.
	Counts() RecordingCounts
}

// RecordingCounts are what a Recorder has and has done.
type RecordingCounts struct {
	Live    int               // recordings that are being written
	Kept    int               // recordings that are complete
	Bytes   int64             // of all files
	Stopped map[string]uint64 // recordings that ended before their process, by RecordingStops
	Missing uint64            // bytes of output that a slow disk kept from being recorded
}

// RecordingStops are the reasons for which recordings end before their process: they have
// reached their limit, all together have, or they could not be written.
var RecordingStops = []string{"size", "total", "error"}

// RecordingViewer says which recordings a client may have.
type RecordingViewer struct {
	Principal string // of the client
	grant     *auth.Grant
}

// Sees reports whether the client may have a recording of a principal's process. Who may
// observe sees what the processes of others wrote. What was written to them only they
// themselves see, and who may do everything.
func (v RecordingViewer) Sees(principal string, input bool) bool {
	own := principal == v.Principal
	switch {
	case !own && !v.grant.Observes():
		return false
	case !input || v.grant.Allows(auth.Full):
		return true
	}
	return own && v.grant.Allows(auth.Exec)
}

func (c *connection) recordingViewer() RecordingViewer {
	return RecordingViewer{c.principal.Name, c.principal.Grant}
}

// recorder returns what records, or refuses a request about recordings.
func (c *connection) recorder(r *rpc.Request) Recorder {
	recorder := c.server.opts.Internal.Recorder
	if recorder == nil {
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this server records nothing", r.Method))
	}
	return recorder
}

// listRecordings serves recording/list.
func (c *connection) listRecordings(r *rpc.Request, p protocol.RecordingsParams) {
	recorder := c.recorder(r)
	if recorder == nil {
		return
	}
	r.HeavyPool(func() {
		list, err := recorder.List(p, c.recordingViewer(), r.Reserve)
		if err != nil {
			r.Fail(err)
			return
		}
		r.Reply(list)
	})
}

// maxRecordingBlock bounds what one recording/read returns.
const maxRecordingBlock = 1 << 20

// readRecording serves recording/read.
func (c *connection) readRecording(r *rpc.Request, p protocol.ReadRecordingParams) {
	recorder := c.recorder(r)
	if recorder == nil {
		return
	}
	if p.Len < 1 || p.Len > maxRecordingBlock {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "len is %d, expected 1 to %d", p.Len, maxRecordingBlock))
		return
	}
	r.Pool(func() {
		result, err := recorder.Read(p, c.recordingViewer(), func(n int) error { return r.Reserve(protocol.Base64Len(n) + 64) })
		if err != nil {
			r.Fail(err)
			return
		}
		if c.begins(p) {
			e := c.event("recording read")
			e.Name = p.RecordingID
			c.server.audit.Record(e)
		}
		r.Reply(result)
	})
}

// begins reports whether a request begins to read a recording: at its beginning, or another
// one than the request before.
func (c *connection) begins(p protocol.ReadRecordingParams) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.lastRecording
	c.lastRecording = p.RecordingID
	return p.Offset == 0 || p.RecordingID != last
}
