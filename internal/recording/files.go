package recording

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"execserver/internal/session"
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

// newID returns an id. Those of later recordings follow in the alphabet.
func newID(at time.Time) string {
	var number [4]byte
	_, _ = rand.Read(number[:]) // it cannot fail
	return at.UTC().Format(timeFormat) + "-" + hex.EncodeToString(number[:])
}

// repair removes a torn line at the end of a recording.
func (r *Recorder) repair(id string) error {
	file, err := r.dir.OpenFile(id+liveEnd, os.O_RDWR, 0)
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
		return r.dir.Remove(id + liveEnd)
	}
	if end < info.Size() { // otherwise it is as old as before
		if err := file.Truncate(end); err != nil {
			return err
		}
	}
	return r.dir.Rename(id+liveEnd, id+wholeEnd)
}

// Bounds of the texts in a header that a client chooses, in bytes. Its argv and the
// identifiers have bounds already. Together they stay below maxHeader, also in JSON, where
// each byte may become six: a recording with a longer header could not be listed.
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
		h.Width, h.Height = min(max(int(about.Size.Cols), 1), maxSide), min(max(int(about.Size.Rows), 1), maxSide)
		if about.Term != "" {
			h.Env = map[string]string{"TERM": cutText(about.Term, maxTerm)}
		}
	}
	return append(encode(h), '\n')
}

// create creates the file of a recording.
func (r *Recorder) create(rec *recording) (err error) {
	if err := r.makeRoom(rec, fileCost); err != nil {
		return err
	}
	rec.lines = r.header(rec.about)
	rec.file, err = r.dir.OpenFile(rec.id+liveEnd, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	return err
}

// reserve counts bytes that a recording is about to write. It returns why the recording
// may not have them, or nil.
func (r *Recorder) reserve(rec *recording, n int64) error {
	size := rec.size + n
	if size > r.opts.MaxBytes {
		return &sizeError{r.opts.MaxBytes}
	}
	return r.makeRoom(rec, cost(size))
}

// sizeError says that a recording has reached its limit.
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

// finish makes a recording whole, if it has a file.
func (r *Recorder) finish(rec *recording) {
	begun := rec.file != nil
	if begun {
		_ = rec.file.Close() // what it could say, the writes have said
		if err := r.dir.Rename(rec.id+liveEnd, rec.id+wholeEnd); err != nil {
			r.opts.Log.Warn("a recording is gone", "recording", rec.id, "error", err)
			begun = false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, rec.id)
	r.countLocked(rec.about.Principal, -rec.counted)
	if begun {
		r.addLocked(wholeFile{rec.id, rec.about.Principal, rec.size, time.Now()})
	}
}

func (r *Recorder) remove(old []wholeFile) {
	for _, file := range old {
		if err := r.dir.Remove(file.id + wholeEnd); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.opts.Log.Warn("cannot remove an old recording", "recording", file.id, "error", err)
		}
	}
}
