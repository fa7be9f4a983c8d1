package process

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Limits of one process with everything that it starts. Zero means none.
type Limits struct {
	Timeout        time.Duration // from the start on: then SIGTERM, and after TimeoutGrace SIGKILL
	MaxOutputBytes int64         // of all streams together; more and it is killed
	MemoryBytes    int64
	Pids           int64   // processes and threads at the same time
	CPUs           float64 // processor time per time
}

// TimeoutGrace is how long a process that has used up its time may take to end.
const TimeoutGrace = 2 * time.Second

// The names of the limits that only some means can enforce, as on the wire.
const (
	LimitMemory = "memoryBytes"
	LimitPids   = "pids"
	LimitCPUs   = "cpus"
)

// LimitError says that a limit was asked for that cannot be enforced here.
type LimitError struct {
	Limit   string // LimitMemory, LimitPids or LimitCPUs
	Missing string // what it would need
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("cannot enforce the limit %s: %s", e.Limit, e.Missing)
}

// outputLimit ends a process that writes more than it may.
type outputLimit struct {
	left atomic.Int64
	over func() // called once
}

// count notes n bytes more.
func (l *outputLimit) count(n int) {
	if l == nil {
		return
	}
	if left := l.left.Add(-int64(n)); left < 0 && left+int64(n) >= 0 {
		l.over()
	}
}
