// Package seldom bounds how often a line of a log is written whose cause comes again and again.
package seldom

import (
	"sync"
	"time"
)

// Line is one kind of line. Its method may be called concurrently. Pause must be set before.
type Line struct {
	Pause time.Duration // the least time between two of them

	mu      sync.Mutex
	written time.Time // when the last one was
	leftOut int       // since then
}

// Due reports whether a line is to be written now, and how many were left out since the last
// one.
func (l *Line) Due() (leftOut int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.written) < l.Pause {
		l.leftOut++
		return 0, false
	}
	leftOut = l.leftOut
	l.written, l.leftOut = now, 0
	return leftOut, true
}
