package filesystem

import (
	"context"
	"path/filepath"
	"sync"
)

// maxMissing bounds both the paths of one watch and the directories above them.
const maxMissing = 64

// MissingWatch tells a peer when files that do not exist may have come into
// being. It has one slot: each watch replaces the one before, and tells once.
// Telling without need is harmless, not telling is not, so whatever is in
// doubt is either refused or told.
type MissingWatch struct {
	notify func(id uint64)

	mu     sync.Mutex // guards the fields below
	last   uint64     // highest id claimed
	slot   *missingSlot
	closed bool
}

// NewMissingWatch returns a watch that calls notify, from a goroutine of its
// own, when the paths of the watch with that id may have changed. Notify must
// not wait for Arm or Close.
func NewMissingWatch(notify func(id uint64)) *MissingWatch {
	return &MissingWatch{notify: notify}
}

// Claim says that a call of Arm with this id is to come, and reports whether it
// may: ids must grow, and one that does not changes nothing. It does not block,
// so whoever must keep calls in order can claim first and arm later.
func (w *MissingWatch) Claim(id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || id <= w.last {
		return false
	}
	w.last = id
	return true
}

// Arm watches paths that must all be missing and, if present is not empty, one
// that must stay as it is, under the id claimed last. It ends the watch before,
// also if it is refused because a path exists, has a link or a file on its way,
// or because there is too much to watch.
//
// If Arm reports true, nothing is told until begin is called: after the answer
// to the peer, which could not make sense of it earlier.
func (w *MissingWatch) Arm(ctx context.Context, id uint64, missing []string, present string) (begin func(), watching bool) {
	w.mu.Lock()
	if w.closed || id != w.last {
		w.mu.Unlock()
		return nil, false
	}
	old := w.slot
	w.slot = nil
	w.mu.Unlock()
	old.stop()

	slot := newMissingSlot(ctx, missing, present, func() { w.notify(id) })
	if slot == nil {
		return nil, false
	}
	w.mu.Lock()
	if w.closed || id != w.last { // replaced already
		w.mu.Unlock()
		slot.stop()
		return nil, false
	}
	w.slot = slot
	w.mu.Unlock()
	return slot.begin, true
}

// Close ends the watch. When it returns, notify is not running and will not be
// called any more.
func (w *MissingWatch) Close() {
	w.mu.Lock()
	old := w.slot
	w.slot, w.closed = nil, true
	w.mu.Unlock()
	old.stop()
}

// watchPlan is what has to be watched, found out from the paths alone.
type watchPlan struct {
	directories map[string]bool // every directory above a path, existing or not
	missing     []string
	present     string
}

// planWatch reports false if there is nothing to watch, or too much.
func planWatch(missing []string, present string) (watchPlan, bool) {
	plan := watchPlan{directories: map[string]bool{}}
	if len(missing) == 0 || len(missing) > maxMissing {
		return plan, false
	}
	add := func(path string) (string, bool) {
		if checkPath(path) != nil {
			return "", false
		}
		path = filepath.Clean(path)
		for dir := filepath.Dir(path); !plan.directories[dir]; dir = filepath.Dir(dir) {
			plan.directories[dir] = true
		}
		return path, len(plan.directories) <= maxMissing
	}
	for _, path := range missing {
		path, ok := add(path)
		if !ok {
			return plan, false
		}
		plan.missing = append(plan.missing, path)
	}
	if present != "" {
		path, ok := add(present)
		if !ok {
			return plan, false
		}
		plan.present = path
	}
	return plan, true
}
