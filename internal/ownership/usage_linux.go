package ownership

import (
	"cmp"
	"slices"

	"execserver/internal/procfs"
)

// UsageKnown says that this system tells what processes use.
const UsageKnown = true

// UsageOf returns what the processes of owners use, those that are closed as well if they
// have left something running, by name. Processes of which nothing runs are left out. It
// searches the system at most once.
func (o *Ownership) UsageOf(owners []*Owner) map[*Owner][]Usage {
	used := make(map[*Tree]*Usage)
	search := false
	for _, w := range owners {
		for _, t := range w.all() {
			used[t] = &Usage{Name: t.opts.Name}
			if t.group == nil {
				search = true
				continue
			}
			for _, pid := range t.processes() {
				used[t].add(pid)
			}
			used[t].CPU, _ = t.group.CPU() // 0 if unknown
		}
	}
	if search {
		// What it cannot see is missing from the sums.
		_ = o.scan(func(from origin, st procfs.Stat) {
			if u := used[from.tree]; u != nil && from.tree.group == nil {
				u.add(st.Pid)
			}
		})
	}
	lists := make(map[*Owner][]Usage, len(owners))
	for t, u := range used {
		if u.Processes > 0 {
			lists[t.owner] = append(lists[t.owner], *u)
		}
	}
	for _, list := range lists {
		slices.SortFunc(list, func(a, b Usage) int { return cmp.Compare(a.Name, b.Name) })
	}
	return lists
}

// add adds a process, if it still runs.
func (u *Usage) add(pid int) {
	if now, err := procfs.ReadUsage(pid); err == nil {
		u.Processes++
		u.CPU += now.CPU
		u.MemoryBytes += now.MemoryBytes
	}
}

// all returns the trees of the owner.
func (w *Owner) all() []*Tree {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	trees := make([]*Tree, 0, len(w.running)+len(w.remains))
	for _, t := range w.running {
		trees = append(trees, t)
	}
	for _, t := range w.remains {
		trees = append(trees, t)
	}
	return trees
}
