package process

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"execserver/internal/procfs"
)

// Background lists what closed processes have left running, by process id.
func (w *Owner) Background() []Background {
	o := w.ownership
	var list []Background
	add := func(t *tree, st procfs.Stat) {
		b := Background{ID: backgroundID(st), Pid: st.Pid, Parent: st.Parent}
		b.Argv, b.ArgvTruncated = shorten(procfs.CommandLine(st.Pid))
		if t != nil {
			b.Name = t.name
		}
		list = append(list, b)
	}
	search := o.claimed == nil
	for _, t := range w.left() {
		if t.group == nil {
			search = true
			continue
		}
		pids, _ := t.group.Processes() // none is what there is when it cannot be read
		for _, pid := range pids {
			if st, err := procfs.ReadStat(pid); err == nil && !st.Ended() {
				add(t, st)
			}
		}
	}
	if search {
		o.look(func(from origin, st procfs.Stat) {
			if from.owner == w && !w.runs(from.tree) {
				add(from.tree, st)
			}
		})
	}
	slices.SortFunc(list, func(a, b Background) int { return a.Pid - b.Pid })
	return list
}

// LeaveRunning returns those of the owners whose closed processes have left
// something running, or may have: where that cannot be told of whom it is, it is
// of all.
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
	o.look(func(from origin, _ procfs.Stat) {
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

// runs reports whether a tree is that of a process which is not closed.
func (w *Owner) runs(t *tree) bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return t != nil && w.running[t.number] == t
}

// backgroundID names a process for good: the number may go to another one, but
// that will have started later.
func backgroundID(st procfs.Stat) string { return fmt.Sprintf("bg-%d-%d", st.Pid, st.Start) }

// SignalBackground sends a signal to one process that Background has listed,
// never to another one that has its number by now. The error is an
// *UnknownBackgroundError when it is not there any more.
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

// owns reports whether a process was left by a closed process of this owner.
func (w *Owner) owns(seen procfs.Stat) bool {
	for _, t := range w.left() {
		if t.group == nil {
			continue
		}
		if pids, _ := t.group.Processes(); slices.Contains(pids, seen.Pid) {
			return true
		}
	}
	from := newLook(w.ownership).origin(seen.Pid)
	return from.owner == w && !w.runs(from.tree)
}
