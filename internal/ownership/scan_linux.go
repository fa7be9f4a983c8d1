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

// attribution is the result of a scan for one process.
type attribution struct {
	owner    *Owner // nil: none
	tree     *Tree  // nil: none, or forgotten by the owner
	relation relation
}

// relation is how a process is related to this program.
type relation int

const (
	unrelated  relation = iota
	descendant          // of this program
	unowned             // a descendant without a known owner; this program has adopted it or an ancestor
)

// processKey identifies a process even if its pid is reused; see procfs.Stat.
type processKey struct {
	pid   int
	start uint64
}

func keyOf(st procfs.Stat) processKey { return processKey{st.Pid, st.Start} }

// A scan is one pass over all processes of the system. It reads the state of each process
// just before it visits it: first orphans, then the youngest processes, which may exit
// soon. It finds nothing where /proc belongs to another namespace.
type scan struct {
	o       *Ownership
	self    int
	begun   uint64 // in units of procfs.Stat.Start
	stats   map[int]procfs.Stat
	decided map[processKey]attribution
	adopted map[int]bool // orphans that have become children of this program
	dead    []int        // unreaped children of this program that have exited
	err     error        // why the scan was incomplete
}

// scanSlice is how many processes a scan reads before it yields the processor.
const scanSlice = 32

// scan calls f for every running process except this one. The error reports that some
// processes could not be seen.
func (o *Ownership) scan(f func(attribution, procfs.Stat)) error {
	s := newScan(o)
	s.run(f)
	return s.err
}

// scanOne is scan for one process.
func (o *Ownership) scanOne(pid int) func(func(attribution, procfs.Stat)) error {
	return func(f func(attribution, procfs.Stat)) error {
		s := newScan(o)
		if o.procErr == nil {
			s.visit(pid, f)
		}
		return s.err
	}
}

func newScan(o *Ownership) *scan {
	s := &scan{o: o, self: os.Getpid(), begun: now(), stats: make(map[int]procfs.Stat), decided: make(map[processKey]attribution)}
	if o.subreaper && o.procErr == nil {
		s.adopted = s.readAdopted()
	}
	return s
}

func (s *scan) run(f func(attribution, procfs.Stat)) {
	if s.o.procErr != nil {
		return
	}
	for pid := range s.adopted {
		s.visit(pid, f)
	}
	pids, err := procfs.Pids()
	if err != nil {
		s.err = err
	}
	if s.o.programID == 0 {
		// Without tags there is little but ancestry, which killing destroys.
		for _, pid := range pids {
			s.stat(pid)
		}
	}
	for _, pid := range slices.Backward(pids) {
		if !s.adopted[pid] {
			s.visit(pid, f)
		}
	}
}

func (s *scan) visit(pid int, f func(attribution, procfs.Stat)) {
	switch st, ok := s.stat(pid); {
	case !ok || pid == s.self:
	case !st.Ended():
		f(s.attribute(st), st)
	case st.Parent == s.self:
		s.dead = append(s.dead, pid)
	}
}

// hasDeadOrphan reports whether an orphan has exited and was not reaped.
func (s *scan) hasDeadOrphan() bool {
	if !s.o.subreaper || len(s.dead) == 0 {
		return false
	}
	adopted := s.readAdopted()
	return slices.ContainsFunc(s.dead, func(pid int) bool { return adopted[pid] })
}

// readAdopted returns the orphans that have become children of this program. The kernel
// makes them children of the first thread, which starts no processes itself; see
// ReapOrphans.
func (s *scan) readAdopted() map[int]bool {
	text, err := sys.ReadFile("/proc/self/task/" + strconv.Itoa(s.self) + "/children")
	s.noteError(err) // some kernels do not have the file
	adopted := make(map[int]bool)
	for word := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			adopted[pid] = true
		}
	}
	return adopted
}

// noteError records that descriptors or memory ran out, so that a process may have been
// missed.
func (s *scan) noteError(err error) {
	if isShortage(err) {
		s.err = err
	}
}

// isShortage reports whether a call failed because descriptors or memory ran out, which
// means nothing about the process in question.
func isShortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR)
}

func (s *scan) stat(pid int) (st procfs.Stat, ok bool) {
	if st, ok = s.stats[pid]; ok {
		return st, st.Pid != 0
	}
	if len(s.stats)%scanSlice == scanSlice-1 {
		runtime.Gosched()
	}
	st, err := procfs.ReadStat(pid)
	s.noteError(err)
	s.stats[pid] = st
	return st, err == nil
}

// attribute attributes a process to its owner and tree, by the rules of the package
// comment.
func (s *scan) attribute(st procfs.Stat) attribution {
	id := keyOf(st)
	if known, ok := s.decided[id]; ok {
		return known
	}
	s.decided[id] = attribution{} // guards against a cycle, should pids be reused within a clock tick
	w := s.attributeNew(st)
	s.decided[id] = w
	return w
}

func (s *scan) attributeNew(st procfs.Stat) (w attribution) {
	if st.Pid == 1 || st.Pid == s.self {
		return w
	}
	if t := s.o.leaderOf(st); t != nil {
		return attribution{t.owner, t, descendant}
	}
	asks := true // for the tag, which costs a system call
	switch parent, seen := s.parent(st); {
	case st.Parent == s.self:
		w.relation = descendant
		if s.adopted[st.Pid] && s.o.cgroups == nil && s.self != 1 {
			w.relation = unowned // otherwise it has a control group, or PID 1 never started it
		}
	case seen:
		w = s.attribute(parent)
		asks = w.owner == nil && w.relation != unrelated
	default: // the parent has exited, is hidden, or is outside the namespace
	}
	if asks {
		owner, tree, err := s.o.readTag(st.Pid)
		if s.noteError(err); owner != nil {
			return attribution{owner, tree, descendant}
		}
	}
	return w
}

// leaderOf returns the tree without a control group whose leader is the process, or led its
// session when it started. A process joins an existing session only by being forked in it,
// and the session's number is not reused until the leader is reaped. There are so many pids
// that none is reused within a clock tick.
func (o *Ownership) leaderOf(st procfs.Stat) *Tree {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.leaders[st.Session]
	if t == nil || t.cgroup != nil || st.Start < t.forked || t.reaped != 0 && st.Start > t.reaped {
		return nil
	}
	return t
}

// parent returns the parent that a process had when it was seen. A parent, even an adoptive
// one, never starts later than its child; otherwise its pid has been reused. If the child
// started after the scan began, the scan may have read the pid of an earlier process, and
// reads it again.
func (s *scan) parent(st procfs.Stat) (parent procfs.Stat, seen bool) {
	if st.Parent == s.self || st.Parent <= 0 {
		return parent, false
	}
	if st.Start > s.begun {
		delete(s.stats, st.Parent)
	}
	parent, seen = s.stat(st.Parent)
	return parent, seen && parent.Start <= st.Start
}

// now returns the time in the unit of procfs.Stat.Start.
func now() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it cannot fail
	const perSecond = 100                          // USER_HZ, whatever the kernel uses internally
	return uint64(t.Nano()) / (1e9 / perSecond)
}
