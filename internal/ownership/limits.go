package ownership

import "fmt"

// Limits of a process together with everything that it starts. Zero means none.
type Limits struct {
	MemoryBytes int64
	Pids        int64   // processes and threads at the same time
	CPUs        float64 // processor time per time
}

// The names of the limits, as on the wire.
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
