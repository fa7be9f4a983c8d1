package ownership

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// origin is where a process comes from. The zero value means elsewhere.
type origin struct {
	owner      *Owner // nil: not known
	tree       *Tree  // nil: not known
	descendant bool   // of this program
	orphan     bool   // this program has adopted it or an ancestor of it
}

// scan is one pass over all processes of the system. It reads the state of each process
// just before it visits it: first of orphans, then of the youngest, which may soon end.
type scan struct {
	o       *Ownership
	self    int
	stats   map[int]procfs.Stat
	origins map[int]origin
	orphans map[int]bool // children that this program has not started itself
	visited int
	ended   []int // children of this program that have ended and were not reaped
	unseen  error // why it could not see all processes
}

// scanSlice is how many processes a scan visits before it yields the processor.
const scanSlice = 32

// scan calls f for every process that runs, except for this one. The error says that
// it has not seen all of them.
func (o *Ownership) scan(f func(origin, procfs.Stat)) error {
	s := newScan(o)
	s.run(f)
	return s.unseen
}

func (s *scan) run(f func(origin, procfs.Stat)) {
	if s.o.foreign != nil {
		s.unseen = s.o.foreign
		return
	}
	for pid := range s.orphans {
		s.visit(pid, f)
	}
	pids, err := procfs.Pids()
	if err != nil {
		s.o.log.Error("cannot list the processes of the system", "error", err)
		s.unseen = err
		return
	}
	if s.o.programID == 0 {
		// Without marks there is only ancestry, which killing destroys.
		for _, pid := range pids {
			s.stat(pid)
		}
	}
	for _, pid := range slices.Backward(pids) {
		if !s.orphans[pid] {
			s.visit(pid, f)
		}
	}
}

func (s *scan) visit(pid int, f func(origin, procfs.Stat)) {
	if s.visited++; s.visited%scanSlice == 0 {
		runtime.Gosched()
	}
	switch st, ok := s.stat(pid); {
	case !ok || pid == s.self:
	case !st.Ended():
		f(s.origin(pid), st)
	case st.Parent == s.self:
		s.ended = append(s.ended, pid)
	}
}

// endedOrphan reports whether one of the children that have ended is an orphan.
func (s *scan) endedOrphan() bool {
	if !s.o.subreaper || len(s.ended) == 0 {
		return false
	}
	orphans := adopted(s.self)
	return slices.ContainsFunc(s.ended, func(pid int) bool { return orphans[pid] })
}

func newScan(o *Ownership) *scan {
	s := &scan{o: o, self: os.Getpid(), stats: make(map[int]procfs.Stat), origins: make(map[int]origin)}
	if o.subreaper && o.foreign == nil {
		s.orphans = adopted(s.self)
	}
	return s
}

// adopted lists the orphans that have become children of this program. The kernel
// makes them children of the first thread, which starts none itself; see ReapOrphans.
func adopted(self int) map[int]bool {
	path := "/proc/self/task/" + strconv.Itoa(self) + "/children"
	text, err := sys.ReadFile(path)
	if err != nil {
		return nil // some kernels do not have the file
	}
	orphans := make(map[int]bool)
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			orphans[pid] = true
		}
	}
	return orphans
}

func (s *scan) stat(pid int) (procfs.Stat, bool) {
	st, ok := s.stats[pid]
	if ok {
		return st, st.Pid != 0
	}
	if s.o.foreign != nil {
		return procfs.Stat{}, false
	}
	st, err := procfs.ReadStat(pid)
	if err != nil {
		st = procfs.Stat{}
		if short(err) {
			s.unseen = err
		}
	}
	s.stats[pid] = st
	return st, err == nil
}

// short reports whether a call failed for want of descriptors or memory. Such a
// failure says nothing about the process that the call was about.
func short(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR)
}

// origin finds out where a process comes from: it is a leader, or its parent has an
// origin, or it has a mark, or it is in the session of a leader.
func (s *scan) origin(pid int) origin {
	if from, ok := s.origins[pid]; ok {
		return from
	}
	s.origins[pid] = origin{} // numbers that change hands could make a circle
	var from origin
	if st, ok := s.stat(pid); ok {
		from = s.find(st)
	}
	s.origins[pid] = from
	return from
}

func (s *scan) find(st procfs.Stat) origin {
	if t := s.o.leader(st.Pid); t != nil {
		return origin{owner: t.owner, tree: t, descendant: true}
	}
	from := origin{descendant: st.Parent == s.self, orphan: st.Parent == s.self && s.orphans[st.Pid]}
	if st.Pid == 1 || st.Pid == s.self {
		return origin{}
	}
	if st.Parent > 1 && st.Parent != s.self {
		parent := s.origin(st.Parent)
		if parent.owner != nil {
			return parent
		}
		from.descendant, from.orphan = parent.descendant, parent.orphan
	}
	if from.descendant || !s.o.subreaper {
		s.fromMark(&from, st)
	}
	return from
}

// fromMark finds the origin of an orphan by its mark or its session.
func (s *scan) fromMark(from *origin, st procfs.Stat) {
	o := s.o
	owner, number, marked := o.readMark(st.Pid)
	o.mu.Lock()
	defer o.mu.Unlock()
	if marked {
		if from.owner = o.owners[owner]; from.owner != nil {
			if from.tree = from.owner.running[number]; from.tree == nil {
				from.tree = from.owner.remains[number]
			}
		}
		return
	}
	// Until its leader is reaped, the number of a session cannot be another's, and nobody
	// joins a session but by birth.
	if t := o.sessions[st.Session]; t != nil && (!t.reaped || st.Start <= t.reapedAt) {
		from.owner, from.tree = t.owner, t
	}
}

// now returns the time in the unit of procfs.Stat.Start.
func now() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it cannot fail
	const perSecond = 100                          // what the kernel shows to programs, whatever it uses itself
	return uint64(t.Nano()) / (1e9 / perSecond)
}

// leader returns the tree that a process leads.
func (o *Ownership) leader(pid int) *Tree {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.sessions[pid]; t != nil && !t.reaped {
		return t
	}
	return nil
}
