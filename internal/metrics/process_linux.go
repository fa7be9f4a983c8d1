package metrics

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// addProcess adds metrics of this process under their usual names. It omits those that cannot
// be read.
func (t *Text) addProcess() {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		t.Begin(Counter, "process_cpu_seconds_total", "Time of processors that this process has used, in seconds.")
		t.Add(float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9)
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		t.Begin(Gauge, "process_open_fds", "Open file descriptors.")
		t.Add(float64(len(open) - 1)) // without the one that reads the directory
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		t.Begin(Gauge, "process_max_fds", "Limit of open file descriptors.")
		t.Add(float64(limit.Cur))
	}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				t.Begin(Gauge, "process_resident_memory_bytes", "Memory of this process that is resident.")
				t.Add(float64(pages) * float64(os.Getpagesize()))
			}
		}
	}
}
