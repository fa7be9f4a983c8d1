package ownership

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// system is the Linux part of an Ownership.
type system struct {
	cgroups     *cgroup.Claimed // nil: not used
	watcher     *cgroup.Watcher // of the groups of closed processes; nil if unavailable
	controllers map[string]bool
	noCgroups   string // why cgroups is nil
	subreaper   bool   // orphans are reparented to this program
	procErr     error  // why the pids in /proc are not this program's; nil: they are
	oomScore    string // at the start of this program; "": children inherit the present one
	programID   uint64 // in tags; 0: tags are not used

	kills []*killRequest // guarded by mu; the kill loop runs while it is not empty
}

// CgroupControllers are the controllers needed by the limits of processes.
var CgroupControllers = []string{"memory", "pids", "cpu"}

// controllerOf maps a limit to the controller that enforces it.
var controllerOf = map[string]string{LimitMemory: "memory", LimitPids: "pids", LimitCPUs: "cpu"}

func (o *Ownership) prepare(opts *Options) error {
	o.mechanism = MechanismProcessGroup
	o.noCgroups = opts.NoCgroups
	if o.noCgroups == "" {
		o.noCgroups = "this program uses no control groups"
	}
	if o.procErr = procfs.CheckNamespace(); o.procErr != nil {
		o.log.Warn("the server cannot see the descendants of its processes: what has left the process group may live on, "+
			"unless it is in a control group", "error", o.procErr)
	}
	if opts.Subreaper {
		if err := sys.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the parent of orphaned descendants: %w", err)
		}
		o.subreaper = true
		o.oomScore = oomScore("self")
		if o.procErr == nil {
			o.mechanism = MechanismSubreaper
			if err := checkTags(); err != nil {
				o.log.Warn("cannot tag processes; orphaned daemons are found by their session alone", "error", err)
			} else {
				o.programID = newProgramID()
			}
		}
	}
	if opts.Cgroups != "" {
		claimed, err := cgroup.Open(opts.Cgroups)
		if err != nil {
			return err
		}
		o.cgroups, o.mechanism = claimed, MechanismCgroup
		if o.watcher, err = cgroup.NewWatcher(); err != nil {
			o.log.Warn("control groups that become empty are removed late", "error", err)
		}
		o.controllers = make(map[string]bool)
		for _, name := range claimed.Controllers() {
			o.controllers[name] = true
		}
	}
	return nil
}

// ScanError returns why this program cannot see the descendants of its processes, or nil if
// it can.
func (o *Ownership) ScanError() error { return o.procErr }

// Close removes the control groups, which must be empty.
func (o *Ownership) Close() {
	if o.watcher != nil {
		o.watcher.Close()
	}
	if o.cgroups != nil {
		o.cgroups.Remove()
	}
}

// Limits returns the limits that can be enforced.
func (o *Ownership) Limits() []string {
	limits := []string{}
	for _, limit := range []string{LimitMemory, LimitPids, LimitCPUs} {
		if o.controllers[controllerOf[limit]] {
			limits = append(limits, limit)
		}
	}
	return limits
}

// treeSystem is the Linux part of a Tree.
type treeSystem struct {
	cgroup *cgroup.Group // nil: none; otherwise it alone determines what belongs to the tree
	tag    uint64        // 0: none
	forked uint64        // just before the fork, in units of procfs.Stat.Start
}

// prepare makes the control group or the tag for the process.
func (t *Tree) prepare() error {
	o := t.owner.ownership
	if o.cgroups != nil {
		group, err := o.cgroups.MakeGroup()
		if err != nil {
			// Fall back to a tag.
			o.log.Warn("cannot create a control group for a process", "processId", t.opts.Name, "error", err)
		}
		t.cgroup = group
	}
	if err := t.setLimits(t.opts.Limits); err != nil {
		return err
	}
	if t.cgroup == nil {
		t.tag = o.newTag(t)
	}
	return nil
}

// OpenGroup opens the control group in which to start the process, or returns nil if there
// is none.
func (t *Tree) OpenGroup() (*os.File, error) {
	if t.cgroup == nil {
		return nil, nil
	}
	return t.cgroup.Open()
}

// setLimits sets the limits of the tree's control group.
func (t *Tree) setLimits(l Limits) error {
	const period = 100_000 // µs, the kernel's default
	for _, want := range []struct {
		limit, file, value string
		set                bool
	}{
		{LimitMemory, "memory.max", strconv.FormatInt(l.MemoryBytes, 10), l.MemoryBytes > 0},
		{LimitPids, "pids.max", strconv.FormatInt(l.Pids, 10), l.Pids > 0},
		{LimitCPUs, "cpu.max", fmt.Sprintf("%d %d", int64(l.CPUs*period), period), l.CPUs > 0},
	} {
		if !want.set {
			continue
		}
		if missing := t.owner.ownership.missingController(t, controllerOf[want.limit]); missing != "" {
			return &LimitError{want.limit, missing}
		}
		if err := t.cgroup.Set(want.file, want.value); err != nil {
			return &LimitError{want.limit, err.Error()}
		}
	}
	if l.MemoryBytes > 0 {
		// Otherwise the limit would only move memory to swap.
		if err := t.cgroup.Set("memory.swap.max", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return &LimitError{LimitMemory, err.Error()}
		}
	}
	return nil
}

// missingController returns why a controller cannot be used, or "" if it can.
func (o *Ownership) missingController(t *Tree, controller string) string {
	switch {
	case o.cgroups == nil:
		return o.noCgroups
	case !o.controllers[controller]:
		return fmt.Sprintf("the controller %s is not available to this program in %s", controller, o.cgroups.Path())
	case t.cgroup == nil:
		return "no control group could be made for the process"
	}
	return ""
}

// releaseIfEmpty removes the control group of an empty tree, and reports whether the tree
// is known to be empty. If it is not, watchEmpty takes over.
func (t *Tree) releaseIfEmpty() (empty bool) {
	if t.cgroup != nil {
		return t.cgroup.Remove() == nil
	}
	return t.leader == 0 || t.tag == 0 && !GroupAlive(t.leader)
}

// watchEmpty removes the group of a closed process and forgets the tree once it is empty.
// It does not block.
func (t *Tree) watchEmpty() {
	o := t.owner.ownership
	switch {
	case t.cgroup == nil: // left to prune
	case o.watcher != nil:
		o.watcher.RemoveEmpty(t.cgroup, t.forget)
	case t.cgroup.Remove() == nil: // otherwise left to prune
		t.forget()
	}
}

// forget forgets a tree whose group has been removed.
func (t *Tree) forget() {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	t.removeLocked()
}

// OOMKilled reports whether the OOM killer killed a process of the tree.
func (t *Tree) OOMKilled() bool {
	if t.cgroup == nil || !t.owner.ownership.controllers["memory"] {
		return false
	}
	n, err := t.cgroup.OOMKills()
	return err == nil && n > 0
}

// hasStarted reports whether a process was ever started for the owner.
func (w *Owner) hasStarted() bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return w.lastNumber > 0
}

// isLast reports whether the program has no other owner now. A scan in progress may have
// missed processes of a later owner.
func (w *Owner) isLast() bool {
	o := w.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.owners) == 1 && o.owners[w.index] == w
}

// Fork calls fork, which starts the leader, while this program has the tree's tag, so that
// the leader inherits it: a child that got its tag later could already have untagged
// children. If the tree has no tag, Fork keeps the leader from inheriting another tree's.
func (t *Tree) Fork(fork func()) {
	t.forked = now()
	own, err := originalLimit()
	if t.tag == 0 || err != nil {
		tagMu.RLock()
		defer tagMu.RUnlock()
	} else {
		tagMu.Lock()
		defer tagMu.Unlock()
		tagged := own
		tagged.Cur = t.tag
		_ = sys.Prlimit(0, rlimitLocks, &tagged, nil) // checkTags has verified that this works
		defer func() { _ = sys.Prlimit(0, rlimitLocks, &own, nil) }()
	}
	fork()
}

// RestoreOOMScore gives a newly started process the score that this program had at its own
// start. The program may have been protected since then, but its children should not be.
func (t *Tree) RestoreOOMScore(pid int) {
	o := t.owner.ownership
	if o.procErr != nil || o.oomScore == "" || oomScore("self") == o.oomScore {
		return
	}
	err := sys.WriteFile("/proc/"+strconv.Itoa(pid)+oomScoreFile, []byte(o.oomScore), 0)
	if err != nil && !os.IsNotExist(err) { // the process is still running
		o.log.Warn("a process keeps the server's oom_score_adj", "pid", pid, "want", o.oomScore, "error", err)
	}
}

// oomScoreFile holds the OOM score adjustment of a process.
const oomScoreFile = "/oom_score_adj"

// oomScore reads the score of a process, or of "self"; "" if it cannot be read.
func oomScore(pid string) string {
	fd, err := sys.Open("/proc/"+pid+oomScoreFile, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer sys.Close(fd)
	var text [16]byte // a score has at most five characters
	n, _ := sys.Read(fd, text[:])
	return strings.TrimSpace(string(text[:max(n, 0)]))
}

// A daemon in a session of its own whose parent has exited shares nothing with the process
// that it comes from, except for what every process inherits. One inherited value has no
// effect: the soft limit RLIMIT_LOCKS, which Linux has not enforced since 2.4.25. A
// subreaper stores a tag in it, which identifies the tree of a process. A descendant could
// change its tag, but would only survive until its session ends.
//
// A tag has 63 bits: the random ID of the program, the owner, and the tree.
const (
	maxProgramID = 1<<23 - 1
	programShift = 40
	ownerShift   = 24
	numberMask   = 1<<24 - 1
)

// rlimitLocks is RLIMIT_LOCKS, which is missing in syscall and x/sys/unix.
const rlimitLocks = 10

func newProgramID() uint64 { return 1 + rand.Uint64N(maxProgramID) }

// checkTags returns an error if tags cannot be used.
func checkTags() error {
	limit, err := originalLimit()
	if err != nil {
		return fmt.Errorf("read the limit of file locks: %w", err)
	}
	if limit.Max < 1<<63 {
		return fmt.Errorf("the hard limit of file locks is %d, which leaves no room for tags", limit.Max)
	}
	return nil
}

// newTag returns the tag of a tree's processes; 0 if tags are not used.
func (o *Ownership) newTag(t *Tree) uint64 {
	if o.programID == 0 || t.owner.index == 0 {
		return 0
	}
	return o.programID<<programShift | uint64(t.owner.index)<<ownerShift | uint64(t.number)
}

// originalLimit returns the program's RLIMIT_LOCKS as it was before the first change.
var originalLimit = sync.OnceValues(func() (limit unix.Rlimit, err error) {
	err = sys.Prlimit(0, rlimitLocks, nil, &limit)
	return limit, err
})

// tagMu is held for writing while this program has the tag of a child, and for reading
// while children without a tag are forked.
var tagMu sync.RWMutex

// readTag returns the owner and tree in the tag of a process. The owner is nil if the
// process has no tag of this program or its owner is gone; the tree is nil if the owner has
// forgotten it.
func (o *Ownership) readTag(pid int) (owner *Owner, tree *Tree, err error) {
	if o.programID == 0 {
		return nil, nil, nil
	}
	var limit unix.Rlimit
	if err := sys.Prlimit(pid, rlimitLocks, nil, &limit); err != nil || limit.Cur>>programShift != o.programID {
		return nil, nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner = o.owners[uint32(limit.Cur>>ownerShift&maxOwners)]; owner != nil {
		tree = owner.trees[uint32(limit.Cur&numberMask)]
	}
	return owner, tree, nil
}
