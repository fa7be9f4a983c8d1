//go:build !linux

package ownership

import (
	"fmt"
	"syscall"
	"time"
)

// system is what an Ownership has here: nothing.
type system struct{}

// treeSystem is what a tree has here: nothing.
type treeSystem struct{}

func (o *Ownership) prepare(opts *Options) error {
	o.means = MeansProcessGroup
	if opts.Subreaper || opts.Cgroups != "" {
		return fmt.Errorf("only Linux has subreapers and control groups")
	}
	return nil
}

// Blind returns nil: the means here do not look for descendants.
func (o *Ownership) Blind() error { return nil }

// Limits lists those of LimitMemory, LimitPids and LimitCPUs that can be
// enforced here: none.
func (o *Ownership) Limits() []string { return []string{} }

func (t *Tree) prepare() error {
	l := t.opts.Limits
	for limit, set := range map[string]bool{LimitMemory: l.MemoryBytes > 0, LimitPids: l.Pids > 0, LimitCPUs: l.CPUs > 0} {
		if set {
			return &LimitError{limit, "it needs the control groups of Linux"}
		}
	}
	return nil
}

// Signal sends a signal to the group of a leader that has been reaped, if it matches. The
// system does not say who is in a group: while a group has members, its number is that of no
// process, but the group may be another's.
func (t *Tree) Signal(sig syscall.Signal, match func(group, session int) bool) error {
	if !match(t.leader, t.leader) || !GroupAlive(t.leader) {
		return nil
	}
	return SignalGroup(t.leader, sig)
}

// now returns 0: nothing here asks for it.
func now() uint64 { return 0 }

// Started notes the leader of the tree and the group of its program. It reports
// whether the owner has ended meanwhile.
func (t *Tree) Started(pid, group int) (late bool) {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	t.leader, t.program = pid, group
	return t.owner.ended
}

func (t *Tree) forgetLocked() {}

// release reports whether nothing of the group is left.
func (t *Tree) release() (empty bool) { return t.leader == 0 || !GroupAlive(t.leader) }

// watch does nothing: a sweep finds what has ended.
func (t *Tree) watch() {}

func (w *Owner) collect() (kill func()) { return nil }

// Collect finds nothing: descendants that have left the group are not known.
func (t *Tree) Collect() (kill func()) { return func() {} }

// Kill waits until the leader's group, which has got SIGKILL, is gone.
func (t *Tree) Kill() { killGroup(t.leader) }

// OOMKilled returns false: only Linux reports it.
func (t *Tree) OOMKilled() bool { return false }

// groups lists the groups that closed processes have left.
func (w *Owner) groups() map[uint32]int {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	groups := make(map[uint32]int)
	for number, t := range w.remains {
		if GroupAlive(t.leader) {
			groups[number] = t.leader
		}
	}
	return groups
}

// alive tells of which closed processes something is left, by the numbers of their
// trees.
func (w *Owner) alive([]*Tree) map[uint32]bool {
	alive := make(map[uint32]bool)
	for number := range w.groups() {
		alive[number] = true
	}
	return alive
}

// clear kills what the closed processes of an owner have left running.
func (w *Owner) clear() {
	for _, group := range w.groups() {
		killGroup(group)
	}
}

// killGroup kills a group until it is gone, or the system cannot kill it.
func killGroup(leader int) {
	deadline := time.Now().Add(killTimeout)
	for pause := time.Millisecond; GroupAlive(leader) && time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		SignalGroup(leader, syscall.SIGKILL)
		time.Sleep(pause)
	}
}

// KillAll does nothing: descendants that have left their groups are not known.
func (o *Ownership) KillAll(time.Duration) {}

// Close does nothing.
func (o *Ownership) Close() {}

// Background lists what closed processes have left running: their groups, each
// by the number of the process that led it.
func (w *Owner) Background() []Background {
	w.ownership.mu.Lock()
	names := make(map[uint32]string)
	for number, t := range w.remains {
		names[number] = t.opts.Name
	}
	w.ownership.mu.Unlock()
	var list []Background
	for number, group := range w.groups() {
		list = append(list, Background{ID: fmt.Sprintf("bg-%d", group), Name: names[number], Pid: group})
	}
	return list
}

// BackgroundOf is Background of several owners.
func (o *Ownership) BackgroundOf(owners []*Owner) map[*Owner][]Background {
	lists := make(map[*Owner][]Background, len(owners))
	for _, w := range owners {
		lists[w] = w.Background()
	}
	return lists
}

// LeaveRunning returns those of the owners whose closed processes have left
// something running.
func (o *Ownership) LeaveRunning(owners []*Owner) map[*Owner]bool {
	running := make(map[*Owner]bool)
	for _, w := range owners {
		if len(w.groups()) > 0 {
			running[w] = true
		}
	}
	return running
}

// SignalBackground sends a signal to a group that Background has listed. The
// error is an *UnknownBackgroundError when it is not there any more.
func (w *Owner) SignalBackground(id string, sig syscall.Signal) error {
	for _, group := range w.groups() {
		if id == fmt.Sprintf("bg-%d", group) {
			return SignalGroup(group, sig)
		}
	}
	return &UnknownBackgroundError{id}
}
