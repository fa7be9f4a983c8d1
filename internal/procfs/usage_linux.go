package procfs

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// Usage is the processor time that a process and its reaped children have used, and the
// memory of the process. Memory that it shares with others counts for each of them.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
}

// tick is the unit of processor times in /proc: the kernel shows a hundredth of a second
// to programs, whatever it uses itself.
const tick = time.Second / 100

// ReadUsage reads the Usage of a process. It returns ErrGone if there is none.
func ReadUsage(pid int) (Usage, error) {
	var space [1024]byte
	text, err := read(pid, "/stat", space[:])
	if err != nil {
		return Usage{}, err
	}
	// The name is in parentheses and may contain anything. The state, the third field, is
	// the first one after it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const first, utime, cstime, rss = 3, 14, 17, 24
	if len(fields) <= rss-first {
		return Usage{}, fmt.Errorf("/proc/%d/stat is malformed: %q", pid, text)
	}
	var ticks uint64
	for _, field := range fields[utime-first : cstime-first+1] { // user and system, its own and that of children
		n, _ := number(field)
		ticks += n
	}
	pages, _ := number(fields[rss-first])
	return Usage{time.Duration(ticks) * tick, int64(pages) * int64(os.Getpagesize())}, nil
}
