//go:build !linux

package ownership

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// system has no fields: only Linux has subreapers and control groups.
type system struct{}

// treeSystem has no fields.
type treeSystem struct{}

func (o *Ownership) prepare(opts *Options) error {
	o.mechanism = MechanismProcessGroup
	if opts.Subreaper || opts.Cgroups != "" {
		return fmt.Errorf("only Linux has subreapers and control groups")
	}
	return nil
}

// ScanError returns nil: MechanismProcessGroup does not scan on this system.
func (o *Ownership) ScanError() error { return nil }

// Limits returns the limits that can be enforced: none.
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

// Signal sends a signal to the group of a reaped leader, if it matches. The members of a
// group cannot be listed: while it has members, its number is not reused for a process, but
// it may be another group.
func (t *Tree) Signal(sig syscall.Signal, match func(group, session int) bool) error {
	if !match(t.leader, t.leader) || !GroupAlive(t.leader) {
		return nil
	}
	return SignalGroup(t.leader, sig)
}

// now returns 0, which is not used.
func now() uint64 { return 0 }

// releaseIfEmpty reports whether the group is empty.
func (t *Tree) releaseIfEmpty() (empty bool) { return t.leader == 0 || !GroupAlive(t.leader) }

// watchEmpty does nothing: prune finds empty groups.
func (t *Tree) watchEmpty() {}

func (w *Owner) collect() (kill func()) { return nil }

// Collect returns a function that does nothing: descendants that have left the group cannot
// be found.
func (t *Tree) Collect() (kill func()) { return func() {} }

// Kill waits until the leader's group, which has got SIGKILL, is gone.
func (t *Tree) Kill() { killGroup(t.leader) }

// OOMKilled returns false: only Linux reports it.
func (t *Tree) OOMKilled() bool { return false }

// background returns the trees of closed processes whose groups have members.
func (w *Owner) background() []*Tree {
	return slices.DeleteFunc(w.list(true), func(t *Tree) bool { return !GroupAlive(t.leader) })
}

// alive returns the trees of closed processes that have background processes.
func (w *Owner) alive([]*Tree) (map[*Tree]bool, error) {
	alive := make(map[*Tree]bool)
	for _, t := range w.background() {
		alive[t] = true
	}
	return alive, nil
}

// killBackground kills the background processes of an owner.
func (w *Owner) killBackground() {
	for _, t := range w.background() {
		t.Kill()
	}
}

// killGroup kills a group until it is gone, or killTimeout is over.
func killGroup(leader int) {
	deadline := time.Now().Add(killTimeout)
	for pause := time.Millisecond; GroupAlive(leader) && time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		SignalGroup(leader, syscall.SIGKILL)
		time.Sleep(pause)
	}
}

// KillAll does nothing: descendants that have left their groups cannot be found.
func (o *Ownership) KillAll(time.Duration) {}

// Close does nothing.
func (o *Ownership) Close() {}

// Background lists the groups with background processes, each by the pid of its former
// leader.
func (w *Owner) Background() []Background {
	var list []Background
	for _, t := range w.background() {
		list = append(list, Background{ID: backgroundID(t), Name: t.opts.Name, Pid: t.leader})
	}
	return list
}

func backgroundID(t *Tree) string { return fmt.Sprintf("bg-%d", t.leader) }

// BackgroundOf returns the Background of several owners.
func (o *Ownership) BackgroundOf(owners []*Owner) map[*Owner][]Background {
	lists := make(map[*Owner][]Background, len(owners))
	for _, w := range owners {
		lists[w] = w.Background()
	}
	return lists
}

// HasBackground returns the owners that have background processes.
func (o *Ownership) HasBackground(owners []*Owner) map[*Owner]bool {
	running := make(map[*Owner]bool)
	for _, w := range owners {
		if len(w.background()) > 0 {
			running[w] = true
		}
	}
	return running
}

// SignalBackground sends a signal to a group listed by Background. The error is an
// *UnknownBackgroundError if the group is gone.
func (w *Owner) SignalBackground(id string, sig syscall.Signal) error {
	for _, t := range w.background() {
		if id == backgroundID(t) {
			return SignalGroup(t.leader, sig)
		}
	}
	return &UnknownBackgroundError{id}
}

// UsageSupported reports whether UsageOf is supported.
const UsageSupported = false

// UsageOf returns nil: only Linux reports usage.
func (o *Ownership) UsageOf([]*Owner) map[*Owner][]Usage { return nil }
