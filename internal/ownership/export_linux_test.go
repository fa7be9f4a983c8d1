package ownership

import "math"

// PruneAt makes an owner look for closed processes to forget when it remembers so many.
func PruneAt(w *Owner, n int) { w.pruneAt = n }

// Pruning reports whether the owner looks for closed processes to forget.
func Pruning(w *Owner) bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return w.pruneAt == math.MaxInt
}
