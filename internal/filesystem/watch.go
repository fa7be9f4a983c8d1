package filesystem

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// WatchOptions are the options of a Watcher. Zero values mean the defaults.
type WatchOptions struct {
	Debounce       time.Duration // changes within this time are reported together; 50 ms
	MaxDirectories int           // watched at the same time; 50,000
	History        int           // events kept for readers that come back, if their paths are not long; 4,096

	// Permit, if not nil, is called with the root, opened only to identify it, before it is watched,
	// and with every file on the way to it. Its error refuses the watch: see OpenPermitted.
	Permit func(*os.File) error
}

func (o WatchOptions) withDefaults() WatchOptions {
	if o.Debounce <= 0 {
		o.Debounce = 50 * time.Millisecond
	}
	if o.MaxDirectories <= 0 {
		o.MaxDirectories = 50_000
	}
	if o.History <= 0 {
		o.History = 4096
	}
	return o
}

// EventKind is the kind of an Event.
type EventKind int

const (
	// Created means that a name is new, or refers to another file now. A new directory
	// implies everything in it, but its content at the time it was found is reported too.
	Created EventKind = iota + 1
	// Modified means that content or attributes have changed.
	Modified
	// Removed means that a name is gone, with everything below it.
	Removed
	// Overflow means that the watcher missed changes at and below the paths of Unwatched,
	// or may miss them from now on.
	Overflow
)

func (k EventKind) String() string {
	switch k {
	case Created:
		return "created"
	case Modified:
		return "modified"
	case Removed:
		return "removed"
	case Overflow:
		return "overflow"
	}
	return "unknown"
}

// Event is a change below the root of a Watcher. Events are numbered from 1
// without gaps.
type Event struct {
	Cursor    uint64
	Kind      EventKind
	Path      string   // raw bytes, not necessarily UTF-8; "" for Overflow
	Unwatched []string // only for Overflow
}

// ErrWatcherClosed is the error of Events when no more events will come.
var ErrWatcherClosed = errors.New("watcher is closed")

// Watcher watches the directory to which a path leads, and everything below it. It does
// not follow links below the directory. When the path leads to another directory or to none,
// it reports an Overflow and continues with the new directory, now or when one appears. It
// keeps recent events, so several readers, or one that lost its connection, can each
// continue from their last event.
type Watcher struct {
	journal *journal
	source  *watchSource
}

// NewWatcher starts watching a directory. It reports what it cannot watch below it in an
// Overflow event. Close releases its resources.
func NewWatcher(ctx context.Context, root string, options WatchOptions) (*Watcher, error) {
	if err := checkPath(root); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	j := newJournal(root, options)
	source, err := newWatchSource(ctx, root, options, j)
	if err != nil {
		j.close()
		return nil, err
	}
	return &Watcher{journal: j, source: source}, nil
}

// Events returns the events after the one with the given cursor; 0 is the beginning. It
// waits until there are some. If the watcher no longer has the events right after the
// cursor, the first one returned is an Overflow for the root.
func (w *Watcher) Events(ctx context.Context, after uint64) ([]Event, error) {
	return w.journal.since(ctx, after)
}

// Cursor returns the cursor of the latest event.
func (w *Watcher) Cursor() uint64 {
	w.journal.mu.Lock()
	defer w.journal.mu.Unlock()
	return w.journal.last
}

// Close stops watching and unblocks callers of Events. It may be called more than once.
func (w *Watcher) Close() {
	w.source.close()
	w.journal.close()
}

// journal collects changes for a moment, numbers the events and keeps them.
type journal struct {
	root    string
	options WatchOptions

	mu           sync.Mutex // guards the fields below
	pending      map[string]change
	lastChange   int      // number of changes recorded
	unwatched    []string // paths of the next Overflow
	pendingBytes int      // bytes of the paths of pending and unwatched
	timer        *time.Timer
	events       []Event
	eventBytes   int // bytes of the paths of events
	last         uint64
	wake         chan struct{} // closed when there are new events
	closed       bool
}

// maxPathBytes bounds the bytes of the paths that wait to be reported, and of those in the
// history. A path has up to 4 KiB.
const maxPathBytes = 1 << 20

// change is what happened to a path since the last events. Its numbers count recorded
// changes.
type change struct {
	kind    EventKind
	order   int // order among the events: when the name came or went
	last    int
	removed int // when the name was last removed; 0 if it was not
}

func newJournal(root string, options WatchOptions) *journal {
	return &journal{root: root, options: options, pending: map[string]change{}, wake: make(chan struct{})}
}

// record records a change of a path.
func (j *journal) record(path string, kind EventKind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if slices.Contains(j.unwatched, j.root) {
		return // the Overflow covers it
	}
	// The last state is reported, even if a name came and went, because a client that
	// looked in between knows the name.
	j.lastChange++
	now, before := change{kind: kind, order: j.lastChange, last: j.lastChange}, j.pending[path]
	if before.kind != 0 && (before.kind == Removed) == (kind == Removed) {
		now.order = before.order
	}
	if before.kind == Created && kind == Modified {
		now.kind = Created
	}
	if now.removed = before.removed; kind == Removed {
		now.removed = j.lastChange
	}
	if before.kind == 0 {
		j.pendingBytes += len(path)
	}
	j.pending[path] = now
	if len(j.pending) > j.options.History || j.pendingBytes > maxPathBytes {
		j.collapse()
	}
	j.schedule()
}

// maxUnwatched is how many paths an Overflow lists. Beyond that it names the root.
const maxUnwatched = 256

// overflow records that the watcher missed changes below path, or will miss them.
func (j *journal) overflow(path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case slices.Contains(j.unwatched, path) || slices.Contains(j.unwatched, j.root):
	case path == j.root || len(j.unwatched) >= maxUnwatched || j.pendingBytes+len(path) > maxPathBytes:
		j.collapse()
	default:
		j.unwatched = append(j.unwatched, path)
		j.pendingBytes += len(path)
	}
	j.schedule()
}

// collapse replaces all pending changes with an Overflow of the root.
func (j *journal) collapse() {
	j.pending = map[string]change{}
	j.unwatched = []string{j.root}
	j.pendingBytes = len(j.root)
}

func (j *journal) schedule() {
	if j.timer == nil && !j.closed {
		j.timer = time.AfterFunc(j.options.Debounce, j.flush)
	}
}

// flush turns pending changes into events.
func (j *journal) flush() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.timer = nil
	before := j.last
	if len(j.unwatched) > 0 {
		j.append(Event{Kind: Overflow, Unwatched: j.unwatched})
	}
	paths := slices.SortedFunc(maps.Keys(j.pending), func(a, b string) int {
		return cmp.Compare(j.pending[a].order, j.pending[b].order)
	})
	for _, path := range paths {
		if kind := j.pending[path].kind; kind == Removed || !j.removedWithParent(path) {
			j.append(Event{Kind: kind, Path: path})
		}
	}
	j.pending, j.unwatched, j.pendingBytes = map[string]change{}, nil, 0
	j.trim()
	if j.last > before {
		close(j.wake)
		j.wake = make(chan struct{})
	}
}

// removedWithParent reports whether a directory above a path was removed after the last
// change of the path, which implies that the path is gone too.
func (j *journal) removedWithParent(path string) bool {
	last := j.pending[path].last
	for len(path) > len(j.root) {
		path = filepath.Dir(path)
		if j.pending[path].removed > last {
			return true
		}
	}
	return false
}

func (j *journal) append(e Event) {
	j.last++
	e.Cursor = j.last
	j.events = append(j.events, e)
	j.eventBytes += e.paths()
}

// paths returns how many bytes the paths of an event have.
func (e Event) paths() int {
	n := len(e.Path)
	for _, path := range e.Unwatched {
		n += len(path)
	}
	return n
}

// trim forgets the oldest events beyond what is kept.
func (j *journal) trim() {
	excess := 0
	for len(j.events)-excess > j.options.History || j.eventBytes > maxPathBytes {
		j.eventBytes -= j.events[excess].paths()
		excess++
	}
	if excess > 0 {
		j.events = slices.Clone(j.events[excess:])
	}
}

func (j *journal) since(ctx context.Context, after uint64) ([]Event, error) {
	for {
		j.mu.Lock()
		events, wake, closed := j.after(after), j.wake, j.closed
		j.mu.Unlock()
		switch {
		case len(events) > 0:
			return events, nil
		case closed:
			return nil, ErrWatcherClosed
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

func (j *journal) after(cursor uint64) []Event {
	first := j.last + 1 - uint64(len(j.events))
	switch {
	case cursor > j.last: // from an earlier watcher
		return []Event{{Cursor: j.last, Kind: Overflow, Unwatched: []string{j.root}}}
	case cursor+1 < first:
		lost := Event{Cursor: first - 1, Kind: Overflow, Unwatched: []string{j.root}}
		return append([]Event{lost}, j.events...)
	}
	return slices.Clone(j.events[cursor+1-first:])
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.closed = true
	if j.timer != nil {
		j.timer.Stop()
	}
	close(j.wake)
}
