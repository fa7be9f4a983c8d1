package recording

import (
	"fmt"
	"slices"
	"time"

	"execserver/internal/quota"
)

// All recordings share TotalBytes. Where principals have quotas, one that records much
// removes its own old recordings, and not those of others.

// wholeFile is a recording that nobody writes any more.
type wholeFile struct {
	id        string
	principal string
	size      int64
	ended     time.Time
}

// cost is what a file of a size counts.
func cost(size int64) int64 { return max(size, fileCost) }

// totalError says that there is no room for a recording, although old ones have made room.
type totalError struct {
	limit int64
	of    string // "all recordings together", or those of its principal
}

func (e *totalError) Error() string { return fmt.Sprintf("%s may have %d bytes", e.of, e.limit) }

func (r *Recorder) countLocked(principal string, bytes int64) {
	r.total += bytes
	if r.of[principal] += bytes; r.of[principal] == 0 {
		delete(r.of, principal)
	}
}

func (r *Recorder) addLocked(file wholeFile) {
	r.countLocked(file.principal, cost(file.size))
	r.whole = append(r.whole, file)
}

// makeRoom counts a recording at a cost, and removes older ones if need be. It returns why
// there is no room, or nil.
func (r *Recorder) makeRoom(rec *recording, cost int64) error {
	r.mu.Lock()
	old := r.expireLocked()
	more, principal := cost-rec.counted, rec.about.Principal
	removed, err := r.roomLocked(principal, rec.about.Limited, more)
	if err == nil {
		r.countLocked(principal, more)
		rec.counted = cost
	}
	r.mu.Unlock()
	r.remove(append(old, removed...))
	return err
}

// roomLocked forgets recordings until there is room for more bytes of a principal. The
// caller removes the files, without the lock.
func (r *Recorder) roomLocked(principal string, limited bool, more int64) (old []wholeFile, err error) {
	forget := func(principal string) bool { // the oldest one
		i := slices.IndexFunc(r.whole, func(f wholeFile) bool { return f.principal == principal })
		if i < 0 {
			return false
		}
		old = append(old, r.whole[i])
		r.countLocked(principal, -cost(r.whole[i].size))
		r.whole = slices.Delete(r.whole, i, i+1)
		return true
	}
	for most := quota.Of(r.opts.TotalBytes); limited && r.of[principal]+more > most; {
		if !forget(principal) {
			return old, &totalError{most, "the recordings of this principal"}
		}
	}
	// The oldest makes room; where there are quotas, the oldest of the principal that has most.
	for limited && r.total+more > r.opts.TotalBytes && forget(r.largestLocked()) {
	}
	n := 0
	for ; r.total+more > r.opts.TotalBytes && n < len(r.whole); n++ {
		r.countLocked(r.whole[n].principal, -cost(r.whole[n].size))
	}
	old, r.whole = append(old, r.whole[:n]...), r.whole[n:]
	if r.total+more > r.opts.TotalBytes {
		return old, &totalError{r.opts.TotalBytes, "all recordings together"}
	}
	return old, nil
}

// largestLocked returns the principal that has most of those that have whole recordings.
func (r *Recorder) largestLocked() (principal string) {
	most := int64(-1)
	for _, file := range r.whole {
		if n := r.of[file.principal]; n > most {
			principal, most = file.principal, n
		}
	}
	return principal
}

// expireLocked forgets recordings that are too old. The caller removes the files.
func (r *Recorder) expireLocked() (old []wholeFile) {
	oldest := time.Now().Add(-r.opts.MaxAge)
	n := slices.IndexFunc(r.whole, func(f wholeFile) bool { return !f.ended.Before(oldest) })
	if n < 0 {
		n = len(r.whole)
	}
	for _, file := range r.whole[:n] {
		r.countLocked(file.principal, -cost(file.size))
	}
	old, r.whole = r.whole[:n:n], r.whole[n:]
	return old
}

// prune removes recordings that are too old, and at the start those for which there is no
// room.
func (r *Recorder) prune() {
	r.mu.Lock()
	old := r.expireLocked()
	removed, _ := r.roomLocked("", false, 0) // live ones make room when they grow
	r.mu.Unlock()
	r.remove(append(old, removed...))
}
