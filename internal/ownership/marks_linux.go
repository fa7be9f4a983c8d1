package ownership

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// A daemon that has made a session of its own and lost its parent shares nothing with
// the process that it comes from, except for what every process inherits. One inherited
// value has no effect: the soft limit of file locks, which Linux has not enforced since
// 2.4.25. A subreaper writes into it whose a process is, and can read it there. A
// descendant could change its mark. All it would gain is to live until its session ends.
//
// A mark has 63 bits: the program's ID, the owner, the process.
const (
	maxProgramID = 1<<23 - 1
	programShift = 40
	ownerShift   = 24
	numberMask   = 1<<24 - 1
)

// rlimitLocks is RLIMIT_LOCKS, which the packages do not name.
const rlimitLocks = 10

// NewProgramID returns a random Options.ProgramID.
func NewProgramID() uint64 { return 1 + rand.Uint64N(maxProgramID) }

// marksWork returns an error if marks cannot be set here.
func marksWork() error {
	limit, err := locksLimit()
	if err != nil {
		return fmt.Errorf("read the limit of file locks: %w", err)
	}
	if limit.Max < 1<<63 {
		return fmt.Errorf("the hard limit of file locks is %d, which leaves no room for marks", limit.Max)
	}
	return nil
}

// markOf returns the mark of a tree's processes; 0 if there are no marks.
func (o *Ownership) markOf(t *Tree) uint64 {
	if o.programID == 0 || t.owner.index == 0 {
		return 0
	}
	return o.programID<<programShift | uint64(t.owner.index)<<ownerShift | uint64(t.number)
}

// locksLimit is the program's own limit of file locks, read before it is changed
// for the first time.
var locksLimit = sync.OnceValues(func() (limit unix.Rlimit, err error) {
	err = sys.Prlimit(0, rlimitLocks, nil, &limit)
	return limit, err
})

// marking is held for writing while the program has the mark of a child, which
// children inherit, and for reading while children without a mark are made.
var marking sync.RWMutex

// Mark gives the program the tree's mark until the caller calls unmark, so that the
// leader, which the caller starts meanwhile, inherits it: a child that got its mark
// later could have children without it by then. Where there are no marks, it keeps other
// trees' marks away from the leader.
func (t *Tree) Mark() (unmark func()) {
	own, err := locksLimit()
	if t.mark == 0 || err != nil {
		marking.RLock()
		return marking.RUnlock
	}
	marking.Lock()
	marked := own
	marked.Cur = t.mark
	_ = sys.Prlimit(0, rlimitLocks, &marked, nil) // marksWork has checked that it may
	return func() {
		_ = sys.Prlimit(0, rlimitLocks, &own, nil)
		marking.Unlock()
	}
}

// readMark reads the mark of a process. ok reports whether the mark is one of this
// program's.
func (o *Ownership) readMark(pid int) (owner, number uint32, ok bool) {
	var limit unix.Rlimit
	if o.programID == 0 || sys.Prlimit(pid, rlimitLocks, nil, &limit) != nil {
		return 0, 0, false
	}
	if limit.Cur>>programShift != o.programID {
		return 0, 0, false
	}
	return uint32(limit.Cur >> ownerShift & maxOwners), uint32(limit.Cur & numberMask), true
}
