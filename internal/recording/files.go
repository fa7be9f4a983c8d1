package recording

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"execserver/internal/extension"
	"execserver/internal/session"
	"execserver/protocol"
)

// isID reports whether a text can be the id of a recording: the time and 8 hexadecimal
// digits, such as 20261123T231500.123Z-0a1b2c3d.
func isID(id string) bool {
	when, number, ok := strings.Cut(id, "-")
	if _, err := time.Parse(timeFormat, when); !ok || err != nil {
		return false
	}
	return len(number) == 8 && strings.Trim(number, "0123456789abcdef") == ""
}

const timeFormat = "20060102T150405.000Z"

// newID returns an id. Ids sort by time.
func newID(at time.Time) string {
	var number [4]byte
	_, _ = rand.Read(number[:]) // it cannot fail
	return at.UTC().Format(timeFormat) + "-" + hex.EncodeToString(number[:])
}

// repair removes a torn line at the end of a recording.
func (r *Recorder) repair(id string) error {
	file, err := r.dir.OpenFile(id+liveExt, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	end, block := info.Size(), make([]byte, 64<<10)
	for end > 0 {
		part := block[:min(end, int64(len(block)))]
		if _, err := file.ReadAt(part, end-int64(len(part))); err != nil {
			return err
		}
		if i := strings.LastIndexByte(string(part), '\n'); i >= 0 {
			end += int64(i + 1 - len(part))
			break
		}
		end -= int64(len(part))
	}
	if end == 0 { // not even a header
		return r.dir.Remove(id + liveExt)
	}
	if end < info.Size() { // otherwise it is as old as before
		if err := file.Truncate(end); err != nil {
			return err
		}
	}
	return r.dir.Rename(id+liveExt, id+finishedExt)
}

// Bounds of the strings in a header that a client chooses, in bytes. Its argv and the
// identifiers are bounded already. Together they stay below maxHeader even in JSON, where a
// byte may take six: a recording with a longer header could not be listed.
const (
	maxTerm = 64
	maxDir  = 4096 // PATH_MAX of Linux
)

// cutText returns the beginning of a text.
func cutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most-unfinished([]byte(text[:most]))]
}

// header returns the first line of a recording.
func (r *Recorder) header(about session.Recorded) []byte {
	h := header{
		Version: version, Width: 80, Height: 24, Timestamp: about.Started.Unix(), Command: strings.Join(about.Argv, " "),
		ExecServer: &source{
			Principal: about.Principal, Session: about.Session, Process: about.Process, Name: about.SessionName,
			Argv: about.Argv, Cut: about.ArgvTruncated, Dir: cutText(about.Dir, maxDir), Pipes: !about.TTY, Input: r.opts.Input,
		},
	}
	if about.TTY {
		h.Width, h.Height = min(max(int(about.Size.Cols), 1), maxDimension), min(max(int(about.Size.Rows), 1), maxDimension)
		if about.Term != "" {
			h.Env = map[string]string{"TERM": cutText(about.Term, maxTerm)}
		}
	}
	return append(encode(h), '\n')
}

// create creates the file of a recording.
func (r *Recorder) create(rec *recording) (err error) {
	if err := r.charge(rec, fileCost); err != nil {
		return err
	}
	rec.lines = r.header(rec.about)
	rec.file, err = r.dir.OpenFile(rec.id+liveExt, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	return err
}

// reserve counts bytes that a recording is about to write. The error is the limit that they
// would exceed.
func (r *Recorder) reserve(rec *recording, n int64) error {
	size := rec.size + n
	if size > r.opts.MaxBytes {
		return &sizeError{r.opts.MaxBytes}
	}
	return r.charge(rec, cost(size))
}

// sizeError reports that a recording has reached its limit.
type sizeError struct{ limit int64 }

func (e *sizeError) Error() string { return fmt.Sprintf("it may have %d bytes", e.limit) }

// reason returns the kind of an error of create or reserve.
func reason(err error) stop {
	switch {
	case errors.As(err, new(*sizeError)):
		return stopSize
	case errors.As(err, new(*totalError)):
		return stopTotal
	}
	return stopError
}

// finish renames the file of a finished recording, if it has one.
func (r *Recorder) finish(rec *recording) {
	begun := rec.file != nil
	if begun {
		_ = rec.file.Close() // writes have reported errors
		if err := r.dir.Rename(rec.id+liveExt, rec.id+finishedExt); err != nil {
			r.opts.Log.Warn("a recording has disappeared", "recording", rec.id, "error", err)
			begun = false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, rec.id)
	r.countLocked(rec.about.Principal, -rec.counted)
	if begun {
		r.addLocked(finishedFile{rec.id, rec.about.Principal, rec.size, time.Now()})
	}
}

func (r *Recorder) remove(old []finishedFile) {
	for _, file := range old {
		if err := r.dir.Remove(file.id + finishedExt); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.opts.Log.Warn("cannot remove an old recording", "recording", file.id, "error", err)
		}
	}
}

// Bounds of one answer to recording/list.
const (
	maxListed     = 256      // recordings examined
	maxHeader     = 64 << 10 // bytes of a recording that must contain its header
	maxAllHeaders = 1 << 20
)

// Counts implements extension.Recorder.
func (r *Recorder) Counts() extension.RecordingCounts {
	c := extension.RecordingCounts{Stopped: make(map[string]uint64), Missing: r.missing.Load()}
	for why, n := range r.stops.All() {
		c.Stopped[string(why)] = n
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Live, c.Kept, c.Bytes = len(r.live), len(r.finished), r.total
	return c
}

// List implements extension.Recorder.
func (r *Recorder) List(p protocol.RecordingsParams, viewer extension.RecordingViewer, reserve func(bytes int) error) (protocol.RecordingsResult, error) {
	result := protocol.RecordingsResult{Recordings: []protocol.ListedRecording{}}
	if err := reserve(2*maxAllHeaders + maxHeader); err != nil {
		return result, err
	}
	looked, bytes := 0, 0
	for _, id := range r.idsBefore(p.Before) {
		if looked == maxListed || bytes >= maxAllHeaders {
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
	for _, file := range r.finished {
		ids = append(ids, file.id)
	}
	r.mu.Unlock()
	if before != "" {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id >= before })
	}
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(b, a) })
	return ids
}

// Read implements extension.Recorder.
func (r *Recorder) Read(p protocol.ReadRecordingParams, viewer extension.RecordingViewer, reserve func(bytes int) error) (protocol.ReadRecordingResult, error) {
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
	// A live recording may be renamed meanwhile.
	var file *recorded
	err := fs.ErrNotExist
	for _, end := range []string{finishedExt, liveExt, finishedExt} {
		file, err = r.openName(id, end)
		if !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
	}
	return nil, err
}

func (r *Recorder) openName(id, end string) (_ *recorded, err error) {
	// Another program of this user may have replaced the file with a FIFO, for which the
	// server must not wait.
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
	return &recorded{file, id, info, h, end == liveExt}, nil
}

// listed describes a recording in an answer to recording/list.
func (f *recorded) listed(viewer extension.RecordingViewer) protocol.ListedRecording {
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
