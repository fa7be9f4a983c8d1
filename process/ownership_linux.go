package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// system is what an Ownership has on Linux.
type system struct {
	claimed     *cgroup.Claimed // nil: no control groups
	watcher     *cgroup.Watcher // of the groups of closed processes; nil: without
	controllers map[string]bool
	noCgroups   string // why claimed is nil
	subreaper   bool   // orphans come to this program
	oomScore    string // that this program was started with; "": processes keep what they inherit
	series      uint64 // of marks; 0: there are none

	// guarded by mu
	sessions map[int]*tree // by the process id of the leader, which is that of its session
	hunts    []*hunt
	hunting  bool
}

// CgroupControllers are those that the limits of processes need.
var CgroupControllers = []string{"memory", "pids", "cpu"}

// controllerOf is what enforces a limit.
var controllerOf = map[string]string{LimitMemory: "memory", LimitPids: "pids", LimitCPUs: "cpu"}

func (o *Ownership) prepare(opts *OwnershipOptions) error {
	_ = theSpawner.begin() // a start will tell
	o.means = MeansProcessGroup
	o.sessions = make(map[int]*tree)
	o.noCgroups = opts.NoCgroups
	if o.noCgroups == "" {
		o.noCgroups = "this program uses no control groups"
	}
	if opts.Subreaper {
		if err := sys.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the parent of orphaned descendants: %w", err)
		}
		o.subreaper = true
		o.oomScore = oomScore("self")
		o.means = MeansSubreaper
		if o.series = opts.Series & maxSeries; o.series == 0 {
			o.series = NewSeries()
		}
		if err := marksWork(); err != nil {
			o.log.Warn("daemons whose parents have ended are told apart by their session alone", "error", err)
			o.series = 0
		}
	}
	if opts.Cgroups != "" {
		claimed, err := cgroup.Open(opts.Cgroups)
		if err != nil {
			return err
		}
		o.claimed, o.means = claimed, MeansCgroup
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

// Limits lists those of LimitMemory, LimitPids and LimitCPUs that can be
// enforced here.
func (o *Ownership) Limits() []string {
	limits := []string{}
	for _, limit := range []string{LimitMemory, LimitPids, LimitCPUs} {
		if o.controllers[controllerOf[limit]] {
			limits = append(limits, limit)
		}
	}
	return limits
}

// treeSystem is what a tree has on Linux.
type treeSystem struct {
	group *cgroup.Group // nil: none
	mark  uint64        // 0: none
}

// prepare gets ready what the process shall be started in.
func (t *tree) prepare(limits Limits) error {
	o := t.owner.ownership
	if o.claimed != nil {
		group, err := o.claimed.Make(t.kept)
		if err != nil {
			// The marks will have to do.
			o.log.Warn("a process gets no control group", "process", t.name, "error", err)
		}
		t.group = group
	}
	if err := t.limit(limits); err != nil {
		return err
	}
	// What is kept must be recognized by a keeper even if it is in a group.
	if t.group == nil || t.kept {
		t.mark = o.markOf(t)
	}
	return nil
}

// limit sets the limits of the tree's control group.
func (t *tree) limit(l Limits) error {
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
		if missing := t.owner.ownership.missing(t, controllerOf[want.limit]); missing != "" {
			return &LimitError{want.limit, missing}
		}
		if err := t.group.Set(want.file, want.value); err != nil {
			return &LimitError{want.limit, err.Error()}
		}
	}
	if l.MemoryBytes > 0 {
		// Without swap, or the limit would only move the memory there.
		if err := t.group.Set("memory.swap.max", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return &LimitError{LimitMemory, err.Error()}
		}
	}
	return nil
}

// missing says what keeps a controller from being used, "" if nothing does.
func (o *Ownership) missing(t *tree, controller string) string {
	switch {
	case o.claimed == nil:
		return o.noCgroups
	case !o.controllers[controller]:
		return fmt.Sprintf("the controller %s is not available to this program in %s", controller, o.claimed.Path())
	case t.group == nil:
		return "no control group could be made for the process"
	}
	return ""
}

// started notes the leader of the tree and the group of its program, and reports whether the owner has ended
// meanwhile.
func (t *tree) started(pid, group int) (late bool) {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	t.leader, t.program = pid, group
	o.sessions[pid] = t
	return t.owner.ended
}

// forgetLocked gives up the session's number, unless it is another's by now.
func (t *tree) forgetLocked() {
	if o := t.owner.ownership; o.sessions[t.leader] == t {
		delete(o.sessions, t.leader)
	}
}

// release gives back what an empty tree has of the system, and reports whether
// it is known to be empty. If it is not, watch sees to the rest.
func (t *tree) release() (empty bool) {
	if t.group != nil {
		return t.group.Remove() == nil
	}
	return t.leader == 0 || t.mark == 0 && !groupAlive(t.leader)
}

// watch has the group of a closed process removed, and then the tree forgotten,
// when nothing is left in it.
func (t *tree) watch() {
	o := t.owner.ownership
	switch {
	case t.group == nil: // a sweep will do
	case o.watcher != nil:
		o.watcher.RemoveEmpty(t.group, t.removed)
	case t.group.Remove() == nil: // else a sweep will do
		t.removed()
	}
}

// removed forgets a tree whose group has been removed.
func (t *tree) removed() {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.owner.remains[t.number] == t {
		delete(t.owner.remains, t.number)
		t.forgetLocked()
	}
}

// collect finds what could not be found any more once the leaders are dead, and
// returns what kills it; nil if there is nothing of that kind.
func (w *Owner) collect() (kill func()) {
	if o := w.ownership; o.claimed == nil && o.series == 0 {
		return o.collect(func(from origin) bool { return from.owner == w })
	}
	return nil
}

// kill kills the tree until it is gone, or the kernel cannot kill it. The
// leader's group has got SIGKILL already.
func (t *tree) kill() {
	o := t.owner.ownership
	if t.group == nil {
		// The owner's Wait hunts all that is left at once, when all leaders have been
		// reaped, but lets go of what is kept.
		o.mu.Lock()
		reaped := t.reaped
		o.mu.Unlock()
		if t.kept || !t.owner.hasEnded() || !reaped {
			<-o.hunt("process "+t.name, func(from origin) bool { return from.tree == t })
		}
		return
	}
	o.killGroups("process "+t.name, t)
}

// killGroups kills what is in the groups of trees until it is gone, or the kernel
// cannot kill it.
func (o *Ownership) killGroups(of string, trees ...*tree) {
	deadline := time.Now().Add(killTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		var failure error
		trees = slices.DeleteFunc(trees, func(t *tree) bool {
			err := t.group.Kill()
			populated, readErr := t.group.Populated()
			if err = errors.Join(err, readErr); err != nil {
				failure = err
			}
			return err == nil && !populated
		})
		if len(trees) == 0 {
			return
		}
		if time.Now().After(deadline) {
			o.log.Error("killed processes are not gone", "of", of, "error", failure)
			return
		}
		time.Sleep(pause)
	}
}

// collect finds what kill could not find any more once the leader is dead, and
// returns what kills it.
func (t *tree) collect() (kill func()) {
	o := t.owner.ownership
	switch {
	case t.group != nil:
		return func() { _ = t.group.Kill() } // kill will tell
	case t.mark == 0:
		return o.collect(func(from origin) bool { return from.tree == t })
	}
	return func() {}
}

// signalOthers sends a signal to what is not in the program's group.
func (t *tree) signalOthers(sig unix.Signal) {
	others := func(st procfs.Stat) {
		if st.Group != t.leader && st.Group != t.program {
			_ = signalProcess(st, sig) // gone, or not ours to signal
		}
	}
	if t.group == nil {
		t.owner.ownership.each(func(from origin) bool { return from.tree == t }, others)
		return
	}
	pids, _ := t.group.Processes()
	for _, pid := range pids {
		if st, err := procfs.ReadStat(pid); err == nil {
			others(st)
		}
	}
}

// oomKilled reports whether the kernel killed something of the tree because
// there was no memory.
func (t *tree) oomKilled() bool {
	if t.group == nil || !t.owner.ownership.controllers["memory"] {
		return false
	}
	n, err := t.group.OOMKills()
	return err == nil && n > 0
}

// alive tells of which closed processes something is left, by the numbers of their
// trees.
func (w *Owner) alive(trees []*tree) map[uint32]bool {
	alive := make(map[uint32]bool)
	search := false
	for _, t := range trees {
		if t.group == nil {
			search = true
			continue
		}
		alive[t.number] = true
		t.watch() // which forgets it as well
	}
	if search {
		w.ownership.each(func(from origin) bool {
			if from.owner == w && from.tree != nil {
				alive[from.tree.number] = true
			}
			return false
		}, nil)
	}
	return alive
}

// clear kills what is left of an owner whose processes are closed.
func (w *Owner) clear() {
	o := w.ownership
	var grouped []*tree
	search := o.claimed == nil && (w.hasStarted() || w.isLast() && hasChildren())
	for _, t := range w.left() {
		if t.group != nil {
			grouped = append(grouped, t)
		} else {
			search = true
		}
	}
	for _, t := range grouped {
		_ = t.group.Kill() // killGroups will tell
	}
	if search {
		<-o.hunt("session", func(from origin) bool {
			return from.owner == w || o.claimed == nil && from.stray() && w.isLast()
		})
	}
	o.killGroups("session", slices.Clone(grouped)...)
	for _, t := range grouped {
		t.watch() // which goes on for what cannot be killed
	}
}

// hasStarted reports whether a process was ever started for the owner.
func (w *Owner) hasStarted() bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return w.number > 0
}

// isLast reports whether no other owner is there now. What a process leaves
// whose owner comes later is seen later as well.
func (w *Owner) isLast() bool {
	o := w.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.owners) == 1 && o.owners[w.index] == w
}

// stray reports whether a process is an orphan that nobody can tell whose it is.
// It goes with the last session. As PID 1 this program has orphans that were never
// its own.
func (from origin) stray() bool {
	return from.orphan && from.owner == nil && !from.released && os.Getpid() != 1
}

// KillAll kills every descendant of this program but those of closed processes
// that are to be kept, until all are gone or the time is up.
func (o *Ownership) KillAll(timeout time.Duration) {
	if o.claimed != nil {
		_ = o.claimed.KillAll() // what follows finds them one by one
	}
	if !o.subreaper || os.Getpid() == 1 || !hasChildren() {
		return // the kernel kills what is left with PID 1
	}
	select {
	case <-o.hunt("server", func(from origin) bool { return from.descendant && !from.released }):
	case <-time.After(timeout):
	}
}

// hasChildren reports whether this program has any: a subreaper without them
// has no descendants.
func hasChildren() bool {
	err := sys.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	return !errors.Is(err, unix.ECHILD)
}

// Close gives the control groups back. Everything must be gone.
func (o *Ownership) Close() {
	if o.watcher != nil {
		o.watcher.Close()
	}
	if o.claimed != nil {
		o.claimed.Remove()
	}
}
