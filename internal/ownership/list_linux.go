package ownership

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"execserver/internal/procfs"
)

// Background lists the background processes of the owner, sorted by pid.
func (w *Owner) Background() []Background {
	return w.ownership.BackgroundOf([]*Owner{w})[w]
}

// BackgroundOf returns the Background of several owners with at most one scan.
func (o *Ownership) BackgroundOf(owners []*Owner) map[*Owner][]Background {
	lists := make(map[*Owner][]Background, len(owners))
	_ = o.eachProcess(owners, true, o.scan, func(w *Owner, t *Tree, st procfs.Stat) { // an incomplete list is better than none
		b := Background{ID: backgroundID(st), Pid: st.Pid, Parent: st.Parent}
		b.Argv, b.ArgvTruncated = ShortArgv(procfs.CommandLine(st.Pid))
		if t != nil {
			b.Name = t.opts.Name
		}
		lists[w] = append(lists[w], b)
	})
	for _, list := range lists {
		slices.SortFunc(list, func(a, b Background) int { return a.Pid - b.Pid })
	}
	return lists
}

// SignalBackground sends a signal to one process listed by Background, and never to another
// one that has reused its pid. The error is an *UnknownBackgroundError if the process has
// exited.
func (w *Owner) SignalBackground(id string, sig syscall.Signal) error {
	var seen procfs.Stat
	if _, err := fmt.Sscanf(id, "bg-%d-%d", &seen.Pid, &seen.Start); err != nil || backgroundID(seen) != id {
		return &UnknownBackgroundError{id}
	}
	o, left := w.ownership, false
	err := o.eachProcess([]*Owner{w}, true, o.scanOne(seen.Pid), func(_ *Owner, _ *Tree, st procfs.Stat) {
		left = left || keyOf(st) == keyOf(seen)
	})
	switch {
	case left:
		err = sendSignal(seen, sig)
	case err == nil:
		err = procfs.ErrGone
	}
	if errors.Is(err, procfs.ErrGone) {
		return &UnknownBackgroundError{id}
	}
	if err != nil {
		return fmt.Errorf("signal %s: %w", id, err)
	}
	return nil
}

// HasBackground returns the owners that have, or may have, background processes: unowned
// processes and incomplete scans count for all owners.
func (o *Ownership) HasBackground(owners []*Owner) map[*Owner]bool {
	running := make(map[*Owner]bool)
	mustScan := o.cgroups == nil
	for _, w := range owners {
		for _, t := range w.list(true) {
			if t.cgroup == nil {
				mustScan = true
			} else if populated, err := t.cgroup.Populated(); err != nil || populated {
				running[w] = true
			}
		}
	}
	if !mustScan {
		return running
	}
	unknown := false
	err := o.scan(func(of attribution, _ procfs.Stat) {
		unknown = unknown || of.relation == unowned
		if of.owner != nil && !of.tree.isOpen() {
			running[of.owner] = true
		}
	})
	if unknown || err != nil {
		for _, w := range owners {
			running[w] = true
		}
	}
	return running
}

// UsageSupported reports whether UsageOf is supported.
const UsageSupported = true

// UsageOf returns the usage of the owners' processes that run, sorted by name. It includes
// closed ones that have left descendants running. It makes at most one scan.
func (o *Ownership) UsageOf(owners []*Owner) map[*Owner][]Usage {
	used := make(map[*Tree]*Usage)
	_ = o.eachProcess(owners, false, o.scan, func(_ *Owner, t *Tree, st procfs.Stat) { // unseen processes are missing from the sums
		if used[t] == nil {
			used[t] = &Usage{}
		}
		used[t].add(st.Pid)
	})
	delete(used, nil) // processes of forgotten trees
	lists := make(map[*Owner][]Usage, len(owners))
	for t, u := range used {
		if u.Processes == 0 {
			continue
		}
		if u.Name = t.opts.Name; t.cgroup != nil {
			u.CPU, _ = t.cgroup.CPU() // 0 if unknown
		}
		lists[t.owner] = append(lists[t.owner], *u)
	}
	for _, list := range lists {
		slices.SortFunc(list, func(a, b Usage) int { return cmp.Compare(a.Name, b.Name) })
	}
	return lists
}

// eachProcess calls f for every running process of the owners, or only for the background
// processes. It lists control groups where trees have one, and otherwise calls scan, which
// is Ownership.scan or scanOne. The tree is nil if the owner has forgotten it. The error
// reports that some processes could not be seen.
func (o *Ownership) eachProcess(owners []*Owner, closed bool, scan func(func(attribution, procfs.Stat)) error, f func(*Owner, *Tree, procfs.Stat)) error {
	var scanErr error
	wanted, mustScan := make(map[*Owner]bool, len(owners)), false
	for _, w := range owners {
		wanted[w] = true
		mustScan = mustScan || o.cgroups == nil && w.hasStarted()
		for _, t := range w.list(closed) {
			if t.cgroup != nil {
				scanErr = errors.Join(scanErr, t.eachInGroup(func(st procfs.Stat) { f(w, t, st) }))
			} else {
				mustScan = true
			}
		}
	}
	if mustScan {
		scanErr = errors.Join(scanErr, scan(func(of attribution, st procfs.Stat) {
			if wanted[of.owner] && !(closed && of.tree.isOpen()) {
				f(of.owner, of.tree, st)
			}
		}))
	}
	return scanErr
}

// eachInGroup calls f for the running processes in the tree's control group. A process may
// exit after the group was read and its pid be reused elsewhere, so the group is read
// twice. The error reports that some processes could not be seen.
func (t *Tree) eachInGroup(f func(procfs.Stat)) error {
	pids, err := t.groupPids()
	var seen []procfs.Stat
	for _, pid := range pids {
		st, statErr := procfs.ReadStat(pid)
		if isShortage(statErr) {
			err = statErr
		} else if statErr == nil && !st.Ended() {
			seen = append(seen, st)
		}
	}
	if len(seen) == 0 {
		return err
	}
	still := make(map[int]bool, len(seen))
	pids, again := t.groupPids()
	for _, pid := range pids {
		still[pid] = true
	}
	for _, st := range seen {
		if still[st.Pid] {
			f(st)
		}
	}
	return errors.Join(err, again)
}

// groupPids returns the processes in the tree's control group whose pids are valid in
// /proc. A group that is gone has none.
func (t *Tree) groupPids() ([]int, error) {
	if t.owner.ownership.procErr != nil {
		return nil, nil
	}
	pids, err := t.cgroup.Processes()
	if !isShortage(err) {
		err = nil
	}
	return pids, err
}

// alive returns the trees of closed processes that have background processes. After an
// error there may be more.
func (w *Owner) alive(trees []*Tree) (alive map[*Tree]bool, err error) {
	alive = make(map[*Tree]bool)
	mustScan := false
	for _, t := range trees {
		if t.cgroup == nil {
			mustScan = true
			continue
		}
		alive[t] = true
		t.watchEmpty() // watchEmpty forgets it when it is empty
	}
	if mustScan {
		err = w.ownership.scan(func(of attribution, _ procfs.Stat) { alive[of.tree] = true })
	}
	return alive, err
}

// isOpen reports whether the process of a tree, which may be nil, has not closed.
func (t *Tree) isOpen() bool {
	if t == nil {
		return false
	}
	t.owner.ownership.mu.Lock()
	defer t.owner.ownership.mu.Unlock()
	return t.proc != nil
}

// backgroundID returns an id that is unique even if the pid is reused, because it includes
// the start time.
func backgroundID(st procfs.Stat) string { return fmt.Sprintf("bg-%d-%d", st.Pid, st.Start) }

// add adds a process if it is still running.
func (u *Usage) add(pid int) {
	if now, err := procfs.ReadUsage(pid); err == nil {
		u.Processes++
		u.CPU += now.CPU
		u.MemoryBytes += now.MemoryBytes
	}
}
