package recording

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/counter"
	"execserver/internal/output"
	"execserver/internal/session"
)

// Defaults of Options.
const (
	DefaultMaxBytes   = 64 << 20
	DefaultTotalBytes = 1 << 30
	DefaultMaxAge     = 7 * 24 * time.Hour
)

// fileCost is the minimum cost of a file, which bounds the number of small ones.
const fileCost = 16 << 10

// pruneInterval is how often recordings that are too old are removed.
const pruneInterval = time.Minute

// closeTimeout bounds how long Close waits for the output of ended processes, and then for
// the disk.
const closeTimeout = time.Second

// logInterval is the minimum time between log messages about recordings that stopped for the
// same reason.
const logInterval = time.Hour

// The extensions of recordings that are being written, and of finished ones.
const (
	liveExt     = ".cast.live"
	finishedExt = ".cast"
)

// Options of a Recorder. The zero value means the defaults.
type Options struct {
	Log        *slog.Logger  // nil discards
	Input      bool          // record the input of processes, which may contain passwords
	MaxBytes   int64         // of one recording, which stops there; default DefaultMaxBytes
	TotalBytes int64         // of all; the oldest are evicted; default DefaultTotalBytes
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

	stops   counter.Table[stop]
	missing atomic.Uint64 // bytes of output that were not recorded

	mu          sync.Mutex
	closed      bool
	finished    []finishedFile        // the oldest first
	live        map[string]*recording // by id
	total       int64                 // cost of all
	byPrincipal map[string]int64      // the same by principal
	logged      map[stop]time.Time    // when the log was told last
}

// stop is the reason why a recording ends before its process.
type stop string

const (
	stopSize  stop = "size"  // it has reached its limit
	stopTotal stop = "total" // the budget of all recordings is exhausted
	stopError stop = "error" // it could not be written
)

// Open returns a Recorder for a directory. It creates the directory if it is missing, and
// repairs recordings of a server that was killed. The directory must be private to this user.
// The caller must call Close.
func Open(dir string, opts *Options) (*Recorder, error) {
	r := &Recorder{live: make(map[string]*recording), byPrincipal: make(map[string]int64), logged: make(map[stop]time.Time)}
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
	if err := lockDirectory(r.lock); err != nil {
		return err
	}
	entries, err := r.lock.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if id, ok := strings.CutSuffix(name, liveExt); ok && isID(id) {
			if err := r.repair(id); err != nil {
				r.opts.Log.Warn("cannot repair a recording", "recording", id, "error", err)
				continue
			}
			name = id + finishedExt
		}
		id, ok := strings.CutSuffix(name, finishedExt)
		if !ok || !isID(id) {
			continue
		}
		r.load(id)
	}
	slices.SortFunc(r.finished, func(a, b finishedFile) int { return a.ended.Compare(b.ended) })
	r.prune()
	return nil
}

// load adds a finished recording found at the start. If its header cannot be read, it has no
// principal.
func (r *Recorder) load(id string) {
	info, err := r.dir.Lstat(id + finishedExt)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	principal := ""
	if file, err := r.openName(id, finishedExt); err == nil {
		principal = file.header.ExecServer.Principal
		_ = file.Close() // it was only read
	}
	r.addLocked(finishedFile{id, principal, info.Size(), info.ModTime()})
}

// Record implements session.Recorder. The goroutine that it starts ends with the process's
// log or with the Recorder.
func (r *Recorder) Record(about session.Recorded, log *output.Log) session.Recording {
	rec := &recording{
		recorder: r, about: about, id: newID(about.Started), source: log, done: make(chan struct{}), wake: func() {},
		encoder: encoder{pipes: !about.TTY, began: about.Started, split: make(map[string][]byte)},
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

// stopped counts a recording that ends before its process, and logs the first one in a while.
// The process continues.
func (r *Recorder) stopped(rec *recording, why stop, err error) {
	r.stops.Add(why)
	if why == stopSize {
		return // as configured
	}
	r.mu.Lock()
	logIt := time.Since(r.logged[why]) > logInterval
	if logIt {
		r.logged[why] = time.Now()
	}
	r.mu.Unlock()
	if logIt {
		r.opts.Log.Error("a process continues without being recorded; the metrics count further ones",
			"sessionId", rec.about.Session, "processId", rec.about.Process, "error", err)
	}
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
	ended := make(chan struct{})
	go func() { // ends when the disk answers
		r.wg.Wait()
		r.release()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeTimeout):
		r.opts.Log.Error("the disk does not respond; the ends of recordings are lost", "directory", r.lock.Name())
	}
}
