package ownership

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"execserver/internal/procfs"
)

// Background lists what closed processes of the owner have left running, in the order of
// process ids.
func (w *Owner) Background() []Background {
	return w.ownership.BackgroundOf([]*Owner{w})[w]
}

// BackgroundOf is Background of several owners. It searches the system at most once.
func (o *Ownership) BackgroundOf(owners []*Owner) map[*Owner][]Background {
	lists := make(map[*Owner][]Background, len(owners))
	add := func(w *Owner, t *Tree, st procfs.Stat) {
		b := Background{ID: backgroundID(st), Pid: st.Pid, Parent: st.Parent}
		b.Argv, b.ArgvTruncated = ShortArgv(procfs.CommandLine(st.Pid))
		if t != nil {
			b.Name = t.opts.Name
		}
		lists[w] = append(lists[w], b)
	}
	search := o.claimed == nil
	for _, w := range owners {
		lists[w] = nil
		for _, t := range w.left() {
			if t.group == nil {
				search = true
				continue
			}
			for _, pid := range t.processes() {
				if st, err := procfs.ReadStat(pid); err == nil && !st.Ended() {
					add(w, t, st)
				}
			}
		}
	}
	if search {
		o.scan(func(from origin, st procfs.Stat) {
			if _, asked := lists[from.owner]; asked && !from.owner.runs(from.tree) {
				add(from.owner, from.tree, st)
			}
		})
	}
	for _, list := range lists {
		slices.SortFunc(list, func(a, b Background) int { return a.Pid - b.Pid })
	}
	return lists
}

// LeaveRunning returns those of the owners whose closed processes have left something
// running. Something whose owner is not known counts for all of them.
func (o *Ownership) LeaveRunning(owners []*Owner) map[*Owner]bool {
	running := make(map[*Owner]bool)
	search := o.claimed == nil
	for _, w := range owners {
		for _, t := range w.left() {
			if t.group == nil {
				search = true
			} else if populated, err := t.group.Populated(); err != nil || populated {
				running[w] = true
			}
		}
	}
	if !search {
		return running
	}
	unknown := false
	o.scan(func(from origin, _ procfs.Stat) {
		switch {
		case from.owner != nil && !from.owner.runs(from.tree):
			running[from.owner] = true
		case from.stray():
			unknown = true
		}
	})
	if unknown {
		for _, w := range owners {
			running[w] = true
		}
	}
	return running
}

// runs reports whether the process of a tree is not closed.
func (w *Owner) runs(t *Tree) bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return t != nil && w.running[t.number] == t
}

// backgroundID names a process for good: another one that gets the same process id
// later will have started later.
func backgroundID(st procfs.Stat) string { return fmt.Sprintf("bg-%d-%d", st.Pid, st.Start) }

// SignalBackground sends a signal to one process that Background has listed, and never
// to another one that has its process id by now. The error is an
// *UnknownBackgroundError when the process has ended.
func (w *Owner) SignalBackground(id string, sig syscall.Signal) error {
	var seen procfs.Stat
	if _, err := fmt.Sscanf(id, "bg-%d-%d", &seen.Pid, &seen.Start); err != nil || backgroundID(seen) != id || !w.owns(seen) {
		return &UnknownBackgroundError{id}
	}
	err := signalSame(seen, sig)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, procfs.ErrGone) || errors.Is(err, errNotTheSame) {
		return &UnknownBackgroundError{id}
	}
	if err != nil {
		return fmt.Errorf("signal %s: %w", id, err)
	}
	return nil
}

// owns reports whether a closed process of this owner has left the process running.
func (w *Owner) owns(seen procfs.Stat) bool {
	for _, t := range w.left() {
		if t.group == nil {
			continue
		}
		if slices.Contains(t.processes(), seen.Pid) {
			return true
		}
	}
	from := newScan(w.ownership).origin(seen.Pid)
	return from.owner == w && !w.runs(from.tree)
}
