package sandbox

import (
	"math"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
)

// minProcesses is how many processes a command gets however few there are.
const minProcesses = 16

// processes is the limit for the command. Without a user namespace of its own the
// kernel counts this program's as well, and has its limit.
func (c *Confinement) processes() uint64 {
	if c.means == MeansNamespaces {
		return 0
	}
	return processLimit()
}

// processLimit is how many processes and threads a command may have: half of those
// that this program may have, so that it does not take what this program and other
// commands need. 0: there is no limit. The kernel counts them for each user
// namespace and user, but never those of root.
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

// spareThreads is how many threads more than at first this program has for calls
// that take time.
const spareThreads = 32

// ReserveThreads has the Go runtime make threads, which it keeps. It ends a program
// that needs another one when the kernel grants none, as while a command takes all
// that there are. A server calls it before it starts any.
func ReserveThreads() { reserveThreads() }

var reserveThreads = sync.OnceFunc(func() {
	var ready, ended sync.WaitGroup
	leave := make(chan struct{})
	ready.Add(spareThreads)
	for range spareThreads {
		ended.Go(func() {
			runtime.LockOSThread() // which no other goroutine uses until then
			defer runtime.UnlockOSThread()
			ready.Done()
			<-leave
		})
	}
	ready.Wait()
	close(leave)
	ended.Wait()
})
