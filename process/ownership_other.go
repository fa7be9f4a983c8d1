//go:build !linux

package process

import (
	"fmt"
	"syscall"
	"time"
)

// system is what an Ownership has here: nothing.
type system struct{}

// treeSystem is what a tree has here: nothing.
type treeSystem struct{}

func (o *Ownership) prepare(opts *OwnershipOptions) error {
	o.means = MeansProcessGroup
	if opts.Subreaper || opts.Cgroups != "" {
		return fmt.Errorf("only Linux has subreapers and control groups")
	}
	return nil
}

// Limits lists those of LimitMemory, LimitPids and LimitCPUs that can be
// enforced here: none.
func (o *Ownership) Limits() []string { return []string{} }

func (t *tree) prepare(l Limits) error {
	for limit, set := range map[string]bool{LimitMemory: l.MemoryBytes > 0, LimitPids: l.Pids > 0, LimitCPUs: l.CPUs > 0} {
		if set {
			return &LimitError{limit, "it needs the control groups of Linux"}
		}
	}
	return nil
}

// started notes the leader of the tree and the group of its program, and reports whether the owner has ended
// meanwhile.
func (t *tree) started(pid, group int) (late bool) {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	t.leader, t.program = pid, group
	return t.owner.ended
}

func (t *tree) forgetLocked() {}

// release reports whether nothing of the group is left.
func (t *tree) release() (empty bool) { return t.leader == 0 || !groupAlive(t.leader) }

// watch does nothing: a sweep finds what has ended.
func (t *tree) watch() {}

func (w *Owner) collect() (kill func()) { return nil }

func (t *tree) collect() (kill func()) { return func() {} }

// kill waits until the leader's group, which has got SIGKILL, is gone.
func (t *tree) kill() { killGroup(t.leader) }

func (t *tree) signalOthers(syscall.Signal) {}

func (t *tree) oomKilled() bool { return false }

// groups lists the groups that closed processes have left.
func (w *Owner) groups() map[uint32]int {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	groups := make(map[uint32]int)
	for number, t := range w.remains {
		if groupAlive(t.leader) {
			groups[number] = t.leader
		}
	}
	return groups
}

// alive tells of which closed processes something is left, by the numbers of their
// trees.
func (w *Owner) alive([]*tree) map[uint32]bool {
	alive := make(map[uint32]bool)
	for number := range w.groups() {
		alive[number] = true
	}
	return alive
}

// clear kills what is left of an owner whose processes are closed.
func (w *Owner) clear() {
	for _, group := range w.groups() {
		killGroup(group)
	}
}

// killGroup kills a group until it is gone, or the system cannot kill it.
func killGroup(leader int) {
	deadline := time.Now().Add(killTimeout)
	for pause := time.Millisecond; groupAlive(leader) && time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		signalGroup(leader, syscall.SIGKILL)
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
		names[number] = t.name
	}
	w.ownership.mu.Unlock()
	var list []Background
	for number, group := range w.groups() {
		list = append(list, Background{ID: fmt.Sprintf("bg-%d", group), Name: names[number], Pid: group})
	}
	return list
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
			return signalGroup(group, sig)
		}
	}
	return &UnknownBackgroundError{id}
}
