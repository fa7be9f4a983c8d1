package ownership

import "time"

// Usage is what a process and everything that it has started use.
type Usage struct {
	Name        string        // of the process, as in TreeOptions
	Processes   int           // that run now
	CPU         time.Duration // used so far; without control groups not that of orphans that have ended
	MemoryBytes int64         // now; shared memory counts for each process
}
