package recording

import (
	"fmt"
	"slices"
	"time"

	"execserver/internal/quota"
)

// All recordings share TotalBytes. If principals have quotas, new recordings of a principal
// evict its own old ones, and not those of others.

// finishedFile is a finished recording.
type finishedFile struct {
	id        string
	principal string
	size      int64
	ended     time.Time
}

// cost is the amount that a file of a size counts toward the budget.
func cost(size int64) int64 { return max(size, fileCost) }

// totalError reports that the budget is exhausted, even after evicting old recordings.
type totalError struct {
	limit int64
	of    string // "all recordings together", or those of its principal
}

func (e *totalError) Error() string { return fmt.Sprintf("%s may have %d bytes", e.of, e.limit) }

func (r *Recorder) countLocked(principal string, bytes int64) {
	r.total += bytes
	if r.byPrincipal[principal] += bytes; r.byPrincipal[principal] == 0 {
		delete(r.byPrincipal, principal)
	}
}

func (r *Recorder) addLocked(file finishedFile) {
	r.countLocked(file.principal, cost(file.size))
	r.finished = append(r.finished, file)
}

// charge counts a recording at a cost, and evicts older ones if necessary.
func (r *Recorder) charge(rec *recording, cost int64) error {
	r.mu.Lock()
	old := r.expireLocked()
	more, principal := cost-rec.counted, rec.about.Principal
	removed, err := r.evictLocked(principal, rec.about.Limited, more)
	if err == nil {
		r.countLocked(principal, more)
		rec.counted = cost
	}
	r.mu.Unlock()
	r.remove(append(old, removed...))
	return err
}

// evictLocked evicts recordings until the budget has more bytes for a principal. The caller
// must remove the files, without the lock.
func (r *Recorder) evictLocked(principal string, limited bool, more int64) (old []finishedFile, err error) {
	forget := func(principal string) bool { // the oldest one
		i := slices.IndexFunc(r.finished, func(f finishedFile) bool { return f.principal == principal })
		if i < 0 {
			return false
		}
		old = append(old, r.finished[i])
		r.countLocked(principal, -cost(r.finished[i].size))
		r.finished = slices.Delete(r.finished, i, i+1)
		return true
	}
	for most := quota.Of(r.opts.TotalBytes); limited && r.byPrincipal[principal]+more > most; {
		if !forget(principal) {
			return old, &totalError{most, "the recordings of this principal"}
		}
	}
	// Evict the oldest; with quotas, the oldest of the principal that uses most.
	for limited && r.total+more > r.opts.TotalBytes && forget(r.largestLocked()) {
	}
	n := 0
	for ; r.total+more > r.opts.TotalBytes && n < len(r.finished); n++ {
		r.countLocked(r.finished[n].principal, -cost(r.finished[n].size))
	}
	old, r.finished = append(old, r.finished[:n]...), r.finished[n:]
	if r.total+more > r.opts.TotalBytes {
		return old, &totalError{r.opts.TotalBytes, "all recordings together"}
	}
	return old, nil
}

// largestLocked returns the principal with finished recordings that uses most.
func (r *Recorder) largestLocked() (principal string) {
	most := int64(-1)
	for _, file := range r.finished {
		if n := r.byPrincipal[file.principal]; n > most {
			principal, most = file.principal, n
		}
	}
	return principal
}

// expireLocked drops recordings that are too old. The caller must remove the files.
func (r *Recorder) expireLocked() (old []finishedFile) {
	oldest := time.Now().Add(-r.opts.MaxAge)
	n := slices.IndexFunc(r.finished, func(f finishedFile) bool { return !f.ended.Before(oldest) })
	if n < 0 {
		n = len(r.finished)
	}
	for _, file := range r.finished[:n] {
		r.countLocked(file.principal, -cost(file.size))
	}
	old, r.finished = r.finished[:n:n], r.finished[n:]
	return old
}

// prune removes recordings that are too old, and at the start those that exceed the budget.
func (r *Recorder) prune() {
	r.mu.Lock()
	old := r.expireLocked()
	removed, _ := r.evictLocked("", false, 0) // live ones make room when they grow
	r.mu.Unlock()
	r.remove(append(old, removed...))
}
