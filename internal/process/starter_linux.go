package process

import (
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// A starter is a thread that starts leaders, and never ends: the kernel sends a child
// its parent-death signal when the thread that made it ends, not the process.
type starter struct {
	sweep  chan struct{} // asks for a call of reapStrays
	others map[int]bool  // children that the thread has from before, and that others wait for

	mu      sync.Mutex
	leaders map[int]*child // that the thread has started and nobody has reaped, by pid
}

// starters is how many starts go on at the same time: half as many as there are
// processors for goroutines. The Go runtime counts a thread in ForkExec as running
// Go code until the program has been loaded, which takes long where many are being
// loaded, and the other half serves everybody else meanwhile.
//
// A program on a file system that does not answer would keep its thread, and with
// it the whole program at its next garbage collection. Therefore prepare examines
// the program and its directory first, and readHeads what the kernel reads of the
// program, in system calls that hold up nobody but the start itself. A file system
// that fails between that and the execution still stops the program.
func starters() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// starts returns the channel of the starters.
var starts = sync.OnceValue(func() chan<- func(*starter) {
	calls := make(chan func(*starter))
	var all []*starter
	for range starters() {
		s := &starter{sweep: make(chan struct{}, 1), leaders: make(map[int]*child)}
		all = append(all, s)
		go s.run(calls)
	}
	go noticeStrays(all)
	return calls
})

func (s *starter) run(calls <-chan func(*starter)) {
	s.takeThread()
	for {
		select {
		case call := <-calls:
			call(s)
		case <-s.sweep:
			s.reapStrays()
		}
	}
}

// takeThread takes the calling thread for good. What the program has started on it before are
// no strays.
func (s *starter) takeThread() {
	runtime.LockOSThread()
	s.others = make(map[int]bool)
	for _, pid := range threadChildren() {
		s.others[pid] = true
	}
}

// forkExec is syscall.ForkExec for the leader of a tree. It runs on the starter's thread.
func (s *starter) forkExec(c *child, path string, argv []string, attr *syscall.ProcAttr) (err error) {
	if c.pid, err = syscall.ForkExec(path, argv, attr); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaders[c.pid], c.exit.starter = c, s
	return nil
}

// forget says that the leader has been reaped. Another one may have its pid by now.
func (s *starter) forget(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaders[c.pid] == c {
		delete(s.leaders, c.pid)
	}
}

// A stray is a child of a starter that the starter did not start: a leader made it with
// CLONE_PARENT. Nobody else waits for it when it ends. strayPause is how long one stays a
// zombie at least, because a sweep reads the list of all children.
const strayPause = time.Second

// noticeStrays asks the starters to sweep after children have ended. It never returns.
func noticeStrays(all []*starter) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		time.Sleep(strayPause)
		for _, s := range all {
			select {
			case s.sweep <- struct{}{}:
			default: // it will sweep anyway
			}
		}
	}
}

// reapStrays reaps the strays that have ended. It runs on the starter's thread, which is
// the only one that has these children and adds leaders to them.
func (s *starter) reapStrays() {
	if procfs.Foreign() != nil {
		return // the list has the numbers of another namespace
	}
	children := threadChildren()
	for _, pid := range children {
		if !s.leads(pid) && !s.others[pid] {
			_, _ = sys.Wait4(pid, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		}
	}
	maps.DeleteFunc(s.others, func(pid int, _ bool) bool { return !slices.Contains(children, pid) })
}

// threadChildren returns the children of the calling thread, or none: some kernels do not list
// them.
func threadChildren() (pids []int) {
	list, _ := sys.ReadFile("/proc/thread-self/children")
	for word := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *starter) leads(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaders[pid] != nil
}
