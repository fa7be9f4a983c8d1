package filesystem

import (
	"context"
	"path/filepath"
	"sync"
)

// maxMissing bounds both the paths of one watch and the directories above them.
const maxMissing = 64

// MissingWatch notifies a peer when missing files may have come into existence. It has
// one slot: each watch replaces the previous one and notifies at most once. A false alarm
// is harmless and a missed change is not. So when in doubt, it refuses the watch or
// notifies.
type MissingWatch struct {
	notify func(id uint64)

	// Admit, if not nil, is called before a watch takes anything of the system, and its error
	// refuses the watch. The watch calls release when it has ended or notified. Set it before
	// the first use.
	Admit func(id uint64) (release func(), err error)

	mu     sync.Mutex // guards the fields below
	last   uint64     // highest id claimed
	slot   *missingSlot
	closed bool
}

// NewMissingWatch returns a watch that calls notify when the paths of the watch with that
// id may have changed. It calls notify from a goroutine of its own. Notify must not wait
// for Arm or Close.
func NewMissingWatch(notify func(id uint64)) *MissingWatch {
	return &MissingWatch{notify: notify}
}

// Claim announces a call of Arm with this id and reports whether the id is valid: ids
// must grow, and Claim ignores one that does not. Claim does not block, so a caller that
// keeps calls in order can claim first and arm later.
func (w *MissingWatch) Claim(id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || id <= w.last {
		return false
	}
	w.last = id
	return true
}

// Arm watches paths that must all be missing and, if present is not empty, one that must
// stay as it is, under the id claimed last. It ends the previous watch. It reports false
// if a path exists, has a link or a file on its way, or if there is too much to watch;
// the previous watch ends all the same. An error is that of Admit.
//
// If Arm reports true, the watch calls notify only after begin: the peer must receive the
// answer first.
func (w *MissingWatch) Arm(ctx context.Context, id uint64, missing []string, present string) (begin func(), watching bool, err error) {
	w.mu.Lock()
	if w.closed || id != w.last {
		w.mu.Unlock()
		return nil, false, nil
	}
	old := w.slot
	w.slot = nil
	w.mu.Unlock()
	old.stop()

	leave := func() {}
	if w.Admit != nil {
		var err error
		if leave, err = w.Admit(id); err != nil {
			return nil, false, err
		}
	}
	slot := newMissingSlot(ctx, missing, present, func() { w.notify(id) }, leave)
	if slot == nil {
		return nil, false, nil
	}
	w.mu.Lock()
	if w.closed || id != w.last { // replaced by a later call
		w.mu.Unlock()
		slot.stop()
		return nil, false, nil
	}
	w.slot = slot
	w.mu.Unlock()
	return slot.begin, true, nil
}

// Close ends the watch. When it returns, notify is not running, and nothing will call it
// any more.
func (w *MissingWatch) Close() {
	w.mu.Lock()
	old := w.slot
	w.slot, w.closed = nil, true
	w.mu.Unlock()
	old.stop()
}

// watchPlan is what to watch, as far as the paths alone determine it.
type watchPlan struct {
	directories map[string]bool // every directory above a path, existing or not
	missing     []string
	present     string
}

// planWatch returns false if there are no paths, or too many.
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
