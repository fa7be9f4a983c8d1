package sandbox

import (
	"math"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
)

// minProcesses is the least number of processes that a command gets.
const minProcesses = 16

// processes returns the limit for the command. Without a user namespace of its own the
// kernel also counts this program's processes, and this program's limit applies.
func (c *Confinement) processes() uint64 {
	if c.means == MeansNamespaces {
		return 0
	}
	return processLimit()
}

// processLimit returns how many processes and threads a command may have: half of those
// that this program may have, so that this program and other commands keep what they
// need. 0 means no limit. The kernel counts processes for each user namespace and user,
// but never those of root.
func processLimit() uint64 {
	limit := uint64(math.MaxUint64)
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &own) == nil && own.Cur != unix.RLIM_INFINITY {
		limit = own.Cur
	}
	if left, ok := cgroup.ProcessesLeft(); ok {
		limit = min(limit, left)
	}
	if limit == math.MaxUint64 {
		return 0
	}
	return max(limit/2, minProcesses)
}

// softDescriptors returns the soft limit on descriptors with which this program starts others,
// or 0 if it is unknown. The Go runtime raises its own limit, tells nobody the earlier one, and
// restores that in a child. A launcher, which lowers the hard limit, must know it.
var softDescriptors = sync.OnceValue(func() uint64 {
	output, err := exec.Command("/bin/sh", "-c", "ulimit -Sn").Output()
	if err != nil {
		return 0
	}
	limit, _ := strconv.ParseUint(strings.TrimSpace(string(output)), 10, 64)
	return limit
})

// reservedThreads is how many threads this program keeps in reserve for blocking calls.
const reservedThreads = 32

// ReserveThreads makes the Go runtime create threads, which it keeps. The runtime ends a
// program that needs another thread when the kernel grants none, for example while a
// command uses all processes. A server calls ReserveThreads before it starts its first
// command.
func ReserveThreads() { reserveThreads() }

var reserveThreads = sync.OnceFunc(func() {
	var ready, ended sync.WaitGroup
	leave := make(chan struct{})
	ready.Add(reservedThreads)
	for range reservedThreads {
		ended.Go(func() {
			runtime.LockOSThread() // no other goroutine uses the thread until then
			defer runtime.UnlockOSThread()
			ready.Done()
			<-leave
		})
	}
	ready.Wait()
	close(leave)
	ended.Wait()
})
