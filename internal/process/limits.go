package process

import (
	"sync/atomic"
	"time"
)

// Limits of one process together with everything that it starts. Zero means none.
type Limits struct {
	Timeout        time.Duration // since the start; then SIGTERM, and after TimeoutGrace SIGKILL
	MaxOutputBytes int64         // of all streams together; a process that writes more is killed
	MemoryBytes    int64
	Pids           int64   // processes and threads at the same time
	CPUs           float64 // processor time per time
}

// TimeoutGrace is how long a process that has used up its time has to end.
const TimeoutGrace = 2 * time.Second

// outputLimit ends a process that writes more than it may.
type outputLimit struct {
	left atomic.Int64
	over func() // called once
}

// count counts n bytes more.
func (l *outputLimit) count(n int) {
	if l == nil {
		return
	}
	if left := l.left.Add(-int64(n)); left < 0 && left+int64(n) >= 0 {
		l.over()
	}
}
