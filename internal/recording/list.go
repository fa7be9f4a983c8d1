package recording

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"execserver/protocol"
	"execserver/server"
)

// Bounds of one answer to recording/list.
const (
	maxLooked     = 256      // recordings at which it looks
	maxHeader     = 64 << 10 // bytes of one, whose header must be there
	maxAllHeaders = 1 << 20
)

// Counts implements server.Recorder.
func (r *Recorder) Counts() server.RecordingCounts {
	c := server.RecordingCounts{Stopped: make(map[string]uint64), Missing: r.missing.Load()}
	for why, n := range r.stops.All() {
		c.Stopped[string(why)] = n
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Live, c.Kept, c.Bytes = len(r.live), len(r.whole), r.total
	return c
}

// List implements server.Recorder.
func (r *Recorder) List(p protocol.RecordingsParams, viewer server.RecordingViewer, reserve func(bytes int) error) (protocol.RecordingsResult, error) {
	result := protocol.RecordingsResult{Recordings: []protocol.ListedRecording{}}
	if err := reserve(2*maxAllHeaders + maxHeader); err != nil {
		return result, err
	}
	looked, bytes := 0, 0
	for _, id := range r.idsBefore(p.Before) {
		if looked == maxLooked || bytes >= maxAllHeaders {
			return result, nil
		}
		looked++
		result.Next = id
		file, err := r.openFile(id)
		if err != nil {
			continue // it has been removed meanwhile, or has no header yet
		}
		if viewer.Sees(file.header.ExecServer.Principal, file.header.ExecServer.Input) {
			listed := file.listed(viewer)
			bytes += len(encode(listed))
			result.Recordings = append(result.Recordings, listed)
		}
		_ = file.Close() // it was only read
	}
	result.Next = ""
	return result, nil
}

// idsBefore returns the ids of all recordings, the newest first, or of those that are
// older than one.
func (r *Recorder) idsBefore(before string) []string {
	r.mu.Lock()
	ids := slices.Collect(maps.Keys(r.live))
	for _, file := range r.whole {
		ids = append(ids, file.id)
	}
	r.mu.Unlock()
	if before != "" {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id >= before })
	}
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(b, a) })
	return ids
}

// Read implements server.Recorder.
func (r *Recorder) Read(p protocol.ReadRecordingParams, viewer server.RecordingViewer, reserve func(bytes int) error) (protocol.ReadRecordingResult, error) {
	var result protocol.ReadRecordingResult
	if err := reserve(int(p.Len)); err != nil {
		return result, err
	}
	unknown := protocol.Errorf(protocol.CodeInvalidRequest, "unknown recording id %s", p.RecordingID)
	if !isID(p.RecordingID) {
		return result, unknown
	}
	file, err := r.openFile(p.RecordingID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.EOF) {
		return result, unknown
	}
	if err != nil {
		return result, protocol.Errorf(protocol.CodeInternal, "read recording %s: %s", p.RecordingID, err)
	}
	defer file.Close()
	if !viewer.Sees(file.header.ExecServer.Principal, file.header.ExecServer.Input) {
		return result, unknown
	}
	offset := int64(min(p.Offset, uint64(file.info.Size())))
	chunk := make([]byte, min(int64(p.Len), file.info.Size()-offset))
	n, err := file.ReadAt(chunk, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return result, protocol.Errorf(protocol.CodeInternal, "read recording %s: %s", p.RecordingID, err)
	}
	result.Chunk, result.Live, result.EOF = chunk[:n], file.live, offset+int64(n) >= file.info.Size()
	return result, nil
}

// recorded is the file of a recording.
type recorded struct {
	*os.File
	id     string
	info   fs.FileInfo
	header header
	live   bool
}

// openFile opens a recording. The caller must close it.
func (r *Recorder) openFile(id string) (*recorded, error) {
	// While it looks, a recording may get the name of a whole one.
	var file *recorded
	err := fs.ErrNotExist
	for _, end := range []string{wholeEnd, liveEnd, wholeEnd} {
		file, err = r.openName(id, end)
		if !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
	}
	return nil, err
}

func (r *Recorder) openName(id, end string) (_ *recorded, err error) {
	// A program of the server's user may have made something else of the name, which must
	// not keep the server waiting.
	file, err := r.dir.OpenFile(id+end, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // nothing was written
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	h, err := readHeader(io.NewSectionReader(file, 0, maxHeader))
	if err != nil {
		return nil, err
	}
	return &recorded{file, id, info, h, end == liveEnd}, nil
}

// listed describes a recording in an answer to recording/list.
func (f *recorded) listed(viewer server.RecordingViewer) protocol.ListedRecording {
	of := f.header.ExecServer
	when, _, _ := strings.Cut(f.id, "-")
	started, _ := time.Parse(timeFormat, when) // it is the name of a recording
	listed := protocol.ListedRecording{
		RecordingID: f.id, SessionID: of.Session, SessionName: of.Name, ProcessID: of.Process, Own: of.Principal == viewer.Principal,
		Argv: of.Argv, ArgvTruncated: of.Cut, Cwd: of.Dir, TTY: !of.Pipes, Input: of.Input, Live: f.live,
		StartedAtMs: started.UnixMilli(), SizeBytes: f.info.Size(),
	}
	if listed.Argv == nil {
		listed.Argv = []string{}
	}
	if !listed.Own {
		listed.Principal = of.Principal
	}
	if !f.live {
		listed.EndedAtMs = max(listed.StartedAtMs, f.info.ModTime().UnixMilli()) // clocks of files are coarse
	}
	return listed
}
