package ownership

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

// system is the part of an Ownership that Linux alone has.
type system struct {
	claimed     *cgroup.Claimed // nil: no control groups
	watcher     *cgroup.Watcher // of the groups of closed processes; nil: without
	controllers map[string]bool
	noCgroups   string // why claimed is nil
	subreaper   bool   // orphans come to this program
	foreign     error  // why the numbers in /proc mean nothing here; nil: they do
	oomScore    string // that this program was started with; "": processes keep what they inherit
	programID   uint64 // of marks; 0: there are none

	// guarded by mu
	sessions map[int]*Tree // by the process id of the leader, which is that of its session
	hunts    []*hunt
	hunting  bool
}

// CgroupControllers are the controllers that the limits of processes need.
var CgroupControllers = []string{"memory", "pids", "cpu"}

// controllerOf is the controller that enforces a limit.
var controllerOf = map[string]string{LimitMemory: "memory", LimitPids: "pids", LimitCPUs: "cpu"}

func (o *Ownership) prepare(opts *Options) error {
	o.means = MeansProcessGroup
	o.sessions = make(map[int]*Tree)
	o.noCgroups = opts.NoCgroups
	if o.noCgroups == "" {
		o.noCgroups = "this program uses no control groups"
	}
	if o.foreign = procfs.Foreign(); o.foreign != nil {
		o.log.Warn("the server cannot see the descendants of its processes: what has left the process group may live on, "+
			"unless it is in a control group", "error", o.foreign)
	}
	if opts.Subreaper {
		if err := sys.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the parent of orphaned descendants: %w", err)
		}
		o.subreaper = true
		o.oomScore = oomScore("self")
		o.means = MeansSubreaper
		if o.programID = opts.ProgramID & maxProgramID; o.programID == 0 {
			o.programID = NewProgramID()
		}
		if o.foreign != nil {
			o.means, o.programID = MeansProcessGroup, 0
		} else if err := marksWork(); err != nil {
			o.log.Warn("cannot mark processes; orphaned daemons are found by their session alone", "error", err)
			o.programID = 0
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

// Blind returns why this program cannot see the descendants of its processes, or nil if it
// can.
func (o *Ownership) Blind() error { return o.foreign }

// Limits returns those of LimitMemory, LimitPids and LimitCPUs that can be enforced
// here.
func (o *Ownership) Limits() []string {
	limits := []string{}
	for _, limit := range []string{LimitMemory, LimitPids, LimitCPUs} {
		if o.controllers[controllerOf[limit]] {
			limits = append(limits, limit)
		}
	}
	return limits
}

// treeSystem is the part of a Tree that Linux alone has.
type treeSystem struct {
	group *cgroup.Group // nil: none
	mark  uint64        // 0: none
}

// prepare makes the control group or the mark that the process is to be started with.
func (t *Tree) prepare() error {
	o := t.owner.ownership
	if o.claimed != nil {
		group, err := o.claimed.Make()
		if err != nil {
			// The marks will have to do.
			o.log.Warn("cannot create a control group for a process", "processId", t.opts.Name, "error", err)
		}
		t.group = group
	}
	if err := t.limit(t.opts.Limits); err != nil {
		return err
	}
	if t.group == nil {
		t.mark = o.markOf(t)
	}
	return nil
}

// OpenGroup opens the control group that the process is to be started in. It returns
// nil when there is none.
func (t *Tree) OpenGroup() (*os.File, error) {
	if t.group == nil {
		return nil, nil
	}
	return t.group.Open()
}

// limit sets the limits of the tree's control group.
func (t *Tree) limit(l Limits) error {
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

// missing says why a controller cannot be used; "" if it can.
func (o *Ownership) missing(t *Tree, controller string) string {
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

// Started notes the leader of the tree and the group of its program. It reports
// whether the owner has ended meanwhile.
func (t *Tree) Started(pid, group int) (late bool) {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	t.leader, t.program = pid, group
	o.sessions[pid] = t
	return t.owner.ended
}

// forgetLocked gives up the session's number, unless it is another's by now.
func (t *Tree) forgetLocked() {
	if o := t.owner.ownership; o.sessions[t.leader] == t {
		delete(o.sessions, t.leader)
	}
}

// release removes the control group of an empty tree, and reports whether the tree is
// known to be empty. If it is not, watch sees to the rest.
func (t *Tree) release() (empty bool) {
	if t.group != nil {
		return t.group.Remove() == nil
	}
	return t.leader == 0 || t.mark == 0 && !GroupAlive(t.leader)
}

// watch waits until the group of a closed process is empty, without blocking. Then it
// removes the group and forgets the tree.
func (t *Tree) watch() {
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
func (t *Tree) removed() {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.owner.remains[t.number] == t {
		delete(t.owner.remains, t.number)
		t.forgetLocked()
	}
}

// collect finds what could not be found any more once the leaders are dead, and returns
// a function that kills it; nil if everything can be found then.
func (w *Owner) collect() (kill func()) {
	if o := w.ownership; o.claimed == nil && o.programID == 0 {
		return o.collect(func(from origin) bool { return from.owner == w })
	}
	return nil
}

// Kill kills the tree until it is gone, or the kernel cannot kill it. The
// leader's group has got SIGKILL already.
func (t *Tree) Kill() {
	o := t.owner.ownership
	if t.group == nil {
		// Once all leaders have been reaped, the owner's Wait hunts everything that is left
		// in one hunt.
		o.mu.Lock()
		reaped := t.reaped
		o.mu.Unlock()
		if !t.owner.hasEnded() || !reaped {
			<-o.hunt("process "+t.opts.Name, func(from origin) bool { return from.tree == t })
		}
		return
	}
	o.killGroups("process "+t.opts.Name, t)
}

// killGroups kills the processes in the groups of trees until none is left, and gives up
// after killTimeout.
func (o *Ownership) killGroups(of string, trees ...*Tree) {
	deadline := time.Now().Add(killTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		var failure error
		trees = slices.DeleteFunc(trees, func(t *Tree) bool {
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
			o.log.Error("killed processes have not ended", "of", of, "error", failure)
			return
		}
		time.Sleep(pause)
	}
}

// Collect finds what Kill could not find any more once the leader is dead, and
// returns a function that kills it.
func (t *Tree) Collect() (kill func()) {
	o := t.owner.ownership
	switch {
	case t.group != nil:
		return func() { _ = t.group.Kill() } // Kill repeats it and reports
	case t.mark == 0:
		return o.collect(func(from origin) bool { return from.tree == t })
	}
	return func() {}
}

// Signal sends a signal to the processes of the tree that match by their process group and
// session. Each is known to belong to the tree when it gets the signal, so that no number
// needs to be held. Signal returns the errors of those that it may not signal.
func (t *Tree) Signal(sig unix.Signal, match func(group, session int) bool) error {
	var refused []error
	signal := func(st procfs.Stat) {
		if match(st.Group, st.Session) {
			refused = append(refused, signalProcess(st, sig))
		}
	}
	if t.group == nil {
		t.owner.ownership.each(func(from origin) bool { return from.tree == t }, signal)
	} else {
		t.eachGrouped(signal)
	}
	return errors.Join(refused...)
}

// eachGrouped calls f for the processes in the tree's control group. A process may end after
// the group was read, and its id go to a process elsewhere; so the group is read again.
func (t *Tree) eachGrouped(f func(procfs.Stat)) {
	pids := t.processes()
	var seen []procfs.Stat
	for _, pid := range pids {
		if st, err := procfs.ReadStat(pid); err == nil {
			seen = append(seen, st)
		}
	}
	if len(seen) == 0 {
		return
	}
	still := make(map[int]bool, len(seen))
	for _, pid := range t.processes() {
		still[pid] = true
	}
	for _, st := range seen {
		if still[st.Pid] {
			f(st)
		}
	}
}

// processes lists the processes in the tree's control group that can be looked up in /proc.
func (t *Tree) processes() []int {
	if t.owner.ownership.foreign != nil {
		return nil
	}
	pids, _ := t.group.Processes() // none is what there is when it cannot be read
	return pids
}

// OOMKilled reports whether the kernel killed something of the tree because
// there was no memory.
func (t *Tree) OOMKilled() bool {
	if t.group == nil || !t.owner.ownership.controllers["memory"] {
		return false
	}
	n, err := t.group.OOMKills()
	return err == nil && n > 0
}

// alive reports which closed processes have left something running, by the numbers of
// their trees.
func (w *Owner) alive(trees []*Tree) map[uint32]bool {
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

// clear kills what the closed processes of an owner have left running.
func (w *Owner) clear() {
	o := w.ownership
	var grouped []*Tree
	search := o.claimed == nil && (w.hasStarted() || w.isLast() && hasChildren())
	for _, t := range w.left() {
		if t.group != nil {
			grouped = append(grouped, t)
		} else {
			search = true
		}
	}
	for _, t := range grouped {
		_ = t.group.Kill() // killGroups repeats it and reports
	}
	if search {
		<-o.hunt("session", func(from origin) bool {
			return from.owner == w || o.claimed == nil && from.stray() && w.isLast()
		})
	}
	o.killGroups("session", slices.Clone(grouped)...)
	for _, t := range grouped {
		t.watch() // for those that cannot be killed
	}
}

// hasStarted reports whether a process was ever started for the owner.
func (w *Owner) hasStarted() bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return w.number > 0
}

// isLast reports whether the program has no other owner now. A scan has not seen yet what
// the processes of a later owner leave running.
func (w *Owner) isLast() bool {
	o := w.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.owners) == 1 && o.owners[w.index] == w
}

// stray reports whether a process is an orphan whose owner is not known. It ends with
// the last session. A program that runs as PID 1 has orphans that it never started.
func (from origin) stray() bool {
	return from.orphan && from.owner == nil && os.Getpid() != 1
}

// KillAll kills every descendant of this program, except for what closed processes were
// allowed to leave running. It returns when all are gone or the time is up.
func (o *Ownership) KillAll(timeout time.Duration) {
	if o.claimed != nil {
		_ = o.claimed.KillAll() // what follows finds them one by one
	}
	if !o.subreaper || os.Getpid() == 1 || !hasChildren() {
		return // with PID 1 the kernel kills the rest
	}
	select {
	case <-o.hunt("server", func(from origin) bool { return from.descendant }):
	case <-time.After(timeout):
	}
}

// hasChildren reports whether this program has children. A subreaper without children
// has no descendants.
func hasChildren() bool {
	err := sys.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	return !errors.Is(err, unix.ECHILD)
}

// Close removes the control groups. Every process must be gone.
func (o *Ownership) Close() {
	if o.watcher != nil {
		o.watcher.Close()
	}
	if o.claimed != nil {
		o.claimed.Remove()
	}
}
