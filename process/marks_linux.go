package process

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// A daemon that has made a session of its own and lost its parent has nothing
// in common with the process that it comes from, but for what every process
// passes on to its children. One of these things has no effect: the soft limit
// of file locks, which Linux has not enforced since 2.4.25. There every process
// of a subreaper carries whose it is, and anybody may read it there. A
// descendant could change it; what it wins is to live until its session ends.
//
// A mark is 63 bits: the program's series, whether it is kept, owner, process.
const (
	maxSeries   = 1<<22 - 1
	seriesShift = 41
	keptBit     = 1 << 40
	ownerShift  = 24
	numberMask  = 1<<24 - 1
)

// rlimitLocks is RLIMIT_LOCKS, which the packages do not name.
const rlimitLocks = 10

// NewSeries returns a random number for OwnershipOptions.
func NewSeries() uint64 { return 1 + rand.Uint64N(maxSeries) }

// marksWork reports what keeps marks from being set here.
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

// markOf is the mark for the processes of a tree; 0 where there are none.
func (o *Ownership) markOf(t *tree) uint64 {
	if o.series == 0 || t.owner.index == 0 {
		return 0
	}
	mark := o.series<<seriesShift | uint64(t.owner.index)<<ownerShift | uint64(t.number)
	if t.kept {
		mark |= keptBit
	}
	return mark
}

// locksLimit is the program's own limit of file locks, read before it is changed
// for the first time.
var locksLimit = sync.OnceValues(func() (limit unix.Rlimit, err error) {
	err = sys.Prlimit(0, rlimitLocks, nil, &limit)
	return limit, err
})

// locksOf is the limit of file locks of a child.
func locksOf(mark uint64) (limit unix.Rlimit, err error) {
	limit, err = locksLimit()
	if mark != 0 {
		limit.Cur = mark
	}
	return limit, err
}

// marking is held while children inherit the limit of file locks.
var marking sync.Mutex

// markedForkExec is syscall.ForkExec for a child that inherits a mark; children
// that others start meanwhile inherit it, too.
func markedForkExec(c *spawnCall) (pid int, err error) {
	own, err := locksLimit()
	marking.Lock()
	defer marking.Unlock()
	if limit, _ := locksOf(c.mark); err == nil && c.mark != 0 {
		_ = sys.Prlimit(0, rlimitLocks, &limit, nil) // marksWork has checked that it may
		defer func() { _ = sys.Prlimit(0, rlimitLocks, &own, nil) }()
	}
	return syscall.ForkExec(c.path, c.argv, c.attr)
}

// readMark reads the mark of a process and reports whether it is one of this
// program.
func (o *Ownership) readMark(pid int) (owner, number uint32, kept, ok bool) {
	var limit unix.Rlimit
	if o.series == 0 || sys.Prlimit(pid, rlimitLocks, nil, &limit) != nil {
		return 0, 0, false, false
	}
	if limit.Cur>>seriesShift != o.series {
		return 0, 0, false, false
	}
	return uint32(limit.Cur >> ownerShift & maxOwners), uint32(limit.Cur & numberMask), limit.Cur&keptBit != 0, true
}
