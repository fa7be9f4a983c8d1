package recording

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"execserver/internal/output"
	"execserver/internal/session"
)

// Defaults of Options.
const (
	DefaultMaxBytes   = 64 << 20
	DefaultTotalBytes = 1 << 30
	DefaultMaxAge     = 7 * 24 * time.Hour
)

// fileCost is what a file counts at least, so that many small ones are bounded, too.
const fileCost = 16 << 10

// pruneInterval is the time between two looks for recordings that are too old.
const pruneInterval = time.Minute

// closeTimeout bounds how long Close waits for what ended processes have written.
const closeTimeout = time.Second

// The ends of the names of files: of one that is being written, and of a whole one.
const (
	liveEnd  = ".cast.live"
	wholeEnd = ".cast"
)

// Options of a Recorder. The zero value means the defaults.
type Options struct {
	Log        *slog.Logger  // nil discards
	Input      bool          // record what is written to processes, which may have passwords
	MaxBytes   int64         // of one recording, which stops there; default DefaultMaxBytes
	TotalBytes int64         // of all; the oldest make room; default DefaultTotalBytes
	MaxAge     time.Duration // since the end of a recording; default DefaultMaxAge
}

// Recorder records processes in a directory. All methods may be called concurrently.
type Recorder struct {
	dir    *os.Root
	lock   *os.File // the directory
	opts   Options
	ctx    context.Context // ends the recordings
	cancel func()
	wg     sync.WaitGroup // goroutines

	mu     sync.Mutex
	closed bool
	whole  []wholeFile           // the oldest first
	live   map[string]*recording // by id
	total  int64                 // cost of all
	told   time.Time             // when the log was last told that there is no room
}

// wholeFile is a recording that nobody writes any more.
type wholeFile struct {
	id    string
	size  int64
	ended time.Time
}

func cost(size int64) int64 { return max(size, fileCost) }

// Open makes a Recorder. It creates the directory if it is missing, and makes whole what a
// server that was killed has left. The directory must belong to this user alone. The caller
// must call Close.
func Open(dir string, opts *Options) (*Recorder, error) {
	r := &Recorder{live: make(map[string]*recording)}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.Log == nil {
		r.opts.Log = slog.New(slog.DiscardHandler)
	}
	if r.opts.MaxBytes <= 0 {
		r.opts.MaxBytes = DefaultMaxBytes
	}
	if r.opts.TotalBytes <= 0 {
		r.opts.TotalBytes = DefaultTotalBytes
	}
	if r.opts.MaxAge <= 0 {
		r.opts.MaxAge = DefaultMaxAge
	}
	if err := r.open(dir); err != nil {
		r.release()
		return nil, fmt.Errorf("cannot record in %s: %w", dir, err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.wg.Go(r.pruneOften)
	return r, nil
}

func (r *Recorder) release() {
	if r.lock != nil {
		_ = r.lock.Close()
	}
	if r.dir != nil {
		_ = r.dir.Close()
	}
}

func (r *Recorder) open(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if r.dir, err = os.OpenRoot(dir); err != nil {
		return err
	}
	if r.lock, err = r.dir.Open("."); err != nil {
		return err
	}
	if err := claim(r.lock); err != nil {
		return err
	}
	entries, err := r.lock.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if id, ok := strings.CutSuffix(name, liveEnd); ok && isID(id) {
			if err := r.repair(id); err != nil {
				r.opts.Log.Warn("cannot make a recording whole", "recording", id, "error", err)
				continue
			}
			name = id + wholeEnd
		}
		id, ok := strings.CutSuffix(name, wholeEnd)
		if !ok || !isID(id) {
			continue
		}
		info, err := r.dir.Lstat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		r.whole = append(r.whole, wholeFile{id, info.Size(), info.ModTime()})
		r.total += cost(info.Size())
	}
	slices.SortFunc(r.whole, func(a, b wholeFile) int { return a.ended.Compare(b.ended) })
	r.prune()
	return nil
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
	if err := file.Truncate(end); err != nil {
		return err
	}
	return r.dir.Rename(id+liveEnd, id+wholeEnd)
}

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

// Record implements session.Recorder. The goroutine that it starts ends with the process's
// log or with the Recorder.
func (r *Recorder) Record(about session.Recorded, log *output.Log) session.Recording {
	rec := &recording{
		recorder: r, about: about, id: newID(about.Started), source: log, done: make(chan struct{}), wake: func() {},
		encoder: encoder{pipes: !about.TTY, began: about.Started, stream: stdout, split: make(map[string][]byte)},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.live[rec.id] = rec
	r.wg.Go(func() { rec.run(r.ctx) })
	return rec
}

// header returns the first line of a recording.
func (r *Recorder) header(about session.Recorded) []byte {
	h := Header{
		Version: 3, Timestamp: about.Started.Unix(), Command: strings.Join(about.Argv, " "),
		Term: Term{Cols: int(about.Size.Cols), Rows: int(about.Size.Rows), Type: about.Term},
		ExecServer: &Source{
			Principal: about.Principal, Session: about.Session, Process: about.Process,
			Argv: about.Argv, Cut: about.ArgvTruncated, Dir: about.Dir, Pipes: !about.TTY, Input: r.opts.Input,
		},
	}
	if !about.TTY {
		h.Term = Term{Cols: 80, Rows: 24}
	}
	h.Term.Cols, h.Term.Rows = min(max(h.Term.Cols, 1), maxSide), min(max(h.Term.Rows, 1), maxSide)
	return append(encode(h), '\n')
}

// create creates the file of a recording.
func (r *Recorder) create(rec *recording) (err error) {
	if !r.makeRoom(rec, fileCost) {
		return fmt.Errorf("all recordings together may have %d bytes", r.opts.TotalBytes)
	}
	rec.file, err = r.dir.OpenFile(rec.id+liveEnd, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	rec.lines = r.header(rec.about)
	return err
}

// reserve counts bytes that a recording is about to write. It returns why the recording
// may not have them, or "".
func (r *Recorder) reserve(rec *recording, n int64) (why string) {
	switch size := rec.size + n; {
	case size > r.opts.MaxBytes:
		return fmt.Sprintf("it may have %d bytes", r.opts.MaxBytes)
	case !r.makeRoom(rec, cost(size)):
		return fmt.Sprintf("all recordings together may have %d bytes", r.opts.TotalBytes)
	}
	return ""
}

// makeRoom counts a recording at a cost, and removes older ones if need be. It reports
// whether there is room.
func (r *Recorder) makeRoom(rec *recording, cost int64) bool {
	r.mu.Lock()
	more := cost - rec.counted
	old := r.pruneLocked(more)
	room := r.total+more <= r.opts.TotalBytes
	if room {
		r.total += more
		rec.counted = cost
	}
	tell := !room && time.Since(r.told) > time.Minute
	if tell {
		r.told = time.Now()
	}
	r.mu.Unlock()
	r.remove(old)
	if tell {
		r.opts.Log.Warn("recordings stop, because all together have reached their limit", "limit", r.opts.TotalBytes)
	}
	return room
}

// finish makes a recording whole, if it has a file.
func (r *Recorder) finish(rec *recording, begun bool) {
	var err error
	if begun {
		_ = rec.file.Close() // what it could say, the writes have said
		if err = r.dir.Rename(rec.id+liveEnd, rec.id+wholeEnd); err != nil {
			r.opts.Log.Warn("a recording is gone", "recording", rec.id, "error", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, rec.id)
	r.total -= rec.counted
	if begun && err == nil {
		r.total += cost(rec.size)
		r.whole = append(r.whole, wholeFile{rec.id, rec.size, time.Now()})
	}
}

// pruneLocked forgets recordings that are too old, and the oldest until there is room for
// more bytes. The caller removes the files, without the lock.
func (r *Recorder) pruneLocked(more int64) (old []wholeFile) {
	oldest := time.Now().Add(-r.opts.MaxAge)
	n := 0
	for ; n < len(r.whole) && (r.whole[n].ended.Before(oldest) || r.total+more > r.opts.TotalBytes); n++ {
		r.total -= cost(r.whole[n].size)
	}
	old, r.whole = r.whole[:n:n], r.whole[n:]
	return old
}

func (r *Recorder) remove(old []wholeFile) {
	for _, file := range old {
		if err := r.dir.Remove(file.id + wholeEnd); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.opts.Log.Warn("cannot remove an old recording", "recording", file.id, "error", err)
		}
	}
}

// pruneOften removes old recordings until Close.
func (r *Recorder) pruneOften() {
	ticker := time.NewTicker(pruneInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.prune()
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *Recorder) prune() {
	r.mu.Lock()
	old := r.pruneLocked(0)
	r.mu.Unlock()
	r.remove(old)
}

// Close ends the recordings. It waits a moment for those of processes that have ended. A
// nil Recorder does nothing.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	live := make([]*recording, 0, len(r.live))
	for _, rec := range r.live {
		live = append(live, rec)
	}
	r.mu.Unlock()
	timeout := time.After(closeTimeout)
wait:
	for _, rec := range live {
		select {
		case <-rec.done:
		case <-timeout:
			break wait
		}
	}
	r.cancel()
	r.wg.Wait()
	r.release()
}
