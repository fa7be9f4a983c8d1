// Package ownership keeps hold of everything that a program's processes start, however
// deep and however hidden, so that it can be listed and ended.
//
// A program has one [Ownership]. Each session has an [Owner], and each of its processes
// a [Tree]: the leader, which package process starts, and everything that descends from
// it. The package sees a process only through the interface [Process].
//
// What a tree consists of is known by the strongest means that the system grants; see
// [Means]. With control groups the kernel keeps the list. As a subreaper the program
// reads /proc: a scan visits all processes and finds the origin of each by its leader,
// its parent, its mark or its session, and a hunt repeats scans and kills what they find
// until nothing is left. A sweep forgets closed processes that have left nothing
// running.
//
// An owner remembers the running processes, and the closed ones that may have left
// descendants running; sweeps bound the latter. A hunt ends after killTimeout even if the kernel cannot kill what
// it has found.
//
// Ownership.mu guards all owners and trees. Nothing else is locked while it is held.
// Process.mu may be held before it.
package ownership

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"execserver/protocol"
)

// Means is how a program keeps hold of what its processes start (PROTOCOL.md,
// "Ownership").
type Means string

// The means, strongest first.
const (
	// MeansCgroup is a control group for each process. Only a process with the
	// privilege to move itself gets out.
	MeansCgroup Means = "cgroup"
	// MeansSubreaper makes the program the parent of all orphans among its
	// descendants. Ancestry and a mark tell whose they are.
	MeansSubreaper Means = "subreaper"
	// MeansProcessGroup is the process group and, on Linux, the ancestry of the
	// moment. A daemon that has left its group and lost its parent escapes.
	MeansProcessGroup Means = "processGroup"
)

// Ownership keeps hold of everything that a program's processes start. A program has
// one, and makes an [Owner] for each of its sessions. All methods may be called
// concurrently.
type Ownership struct {
	log   *slog.Logger
	means Means
	system

	mu        sync.Mutex
	owners    map[uint32]*Owner
	lastOwner uint32
}

// Options are the options of New. The zero value is right for a library: it
// changes nothing of the program that it is part of.
type Options struct {
	Log *slog.Logger // nil: discard

	// Subreaper makes this program the parent of all orphans among its
	// descendants. The caller runs ReapOrphans. Linux only.
	Subreaper bool
	// Cgroups is a directory that was claimed for this program in the hierarchy
	// of control groups; empty: use none, for the reason NoCgroups.
	Cgroups, NoCgroups string
	// ProgramID tells the processes of this program from those of others. A
	// program and its keeper have the same one, made by NewProgramID; 0: a new one.
	ProgramID uint64
}

// New prepares the strongest means that the options and the system allow.
func New(opts *Options) (*Ownership, error) {
	if opts == nil {
		opts = &Options{}
	}
	o := &Ownership{log: opts.Log, owners: make(map[uint32]*Owner)}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	if err := o.prepare(opts); err != nil {
		return nil, err
	}
	return o, nil
}

// Default returns an Ownership by MeansProcessGroup, which processes have that are
// started without an owner.
var Default = sync.OnceValue(func() *Ownership {
	o, err := New(nil)
	if err != nil {
		panic(err) // the zero options ask the system for nothing
	}
	return o
})

// Means returns the means by which descendants are found.
func (o *Ownership) Means() Means { return o.means }

// maxOwners is how many owners fit into a mark.
const maxOwners = 1<<16 - 1

// SoleOwner makes an owner for one process that no session owns. Forget ends it.
func SoleOwner() *Owner { return Default().newOwner() }

// newOwner makes an owner that is not among those of the sessions.
func (o *Ownership) newOwner() *Owner {
	return &Owner{ownership: o, running: make(map[uint32]*Tree), remains: make(map[uint32]*Tree), firstSweep: firstSweep, sweepAt: firstSweep}
}

// NewOwner makes an owner.
func (o *Ownership) NewOwner() *Owner {
	owner := o.newOwner()
	o.mu.Lock()
	defer o.mu.Unlock()
	for range maxOwners {
		o.lastOwner = o.lastOwner%maxOwners + 1
		if o.owners[o.lastOwner] == nil {
			owner.index = o.lastOwner
			o.owners[owner.index] = owner
			break
		}
	}
	return owner
}

// Owner owns processes and what they leave running; a session has one. All
// methods may be called concurrently.
type Owner struct {
	ownership *Ownership
	index     uint32 // 0: there are too many for marks
	trees     sync.WaitGroup

	// guarded by ownership.mu
	running    map[uint32]*Tree // of processes that are not closed
	remains    map[uint32]*Tree // of closed ones that may have left something
	number     uint32           // given last
	firstSweep int              // the least that sweepAt is
	sweepAt    int              // how many remains make a sweep worthwhile
	sweeps     bool             // a sweep is going on
	ended      bool
}

// firstSweep is how many closed processes an owner remembers before its first sweep.
// A sweep costs more than a process.
const firstSweep = 1024

// Process is a process, of package process, as its owner sees it.
type Process interface {
	// End begins to kill the process and what it has started, and reports whether
	// it was running. found says that the owner itself kills what has left the
	// process's group.
	End(cause protocol.EndedBy, found bool) (running bool)
	// Reaped is closed when the leader has been waited for.
	Reaped() <-chan struct{}
}

// TreeOptions say how a process is owned.
type TreeOptions struct {
	Name   string // of the process in Background
	Limits Limits
}

// Tree is a process and everything that it starts.
type Tree struct {
	owner  *Owner
	number uint32 // within the owner
	opts   TreeOptions
	treeSystem

	// guarded by ownership.mu
	proc    Process // nil once it is closed
	leader  int     // its process id; 0: not started
	program int     // the group of the program; another's than leader behind a launcher
	reaped  bool    // the leader has been waited for; its number may go to another
	// reapedAt is when, as procfs.Stat.Start. The kernel has so many numbers that it gives
	// none away twice within a clock tick.
	reapedAt uint64
}

// ErrEnded says that the owner has ended, and owns no new processes.
var ErrEnded = errors.New("its session has ended")

// NewTree makes the tree of a process that is about to be started. The caller then
// calls either Started and, in the end, Closed, or Discard. The error is ErrEnded or
// a *LimitError.
func (w *Owner) NewTree(p Process, opts TreeOptions) (*Tree, error) {
	o := w.ownership
	t := &Tree{owner: w, opts: opts, proc: p}
	o.mu.Lock()
	if w.ended {
		o.mu.Unlock()
		return nil, ErrEnded
	}
	for {
		w.number = (w.number + 1) % (1 << 24)
		if w.running[w.number] == nil && w.remains[w.number] == nil {
			break
		}
	}
	t.number = w.number
	w.running[t.number] = t
	w.trees.Add(1)
	o.mu.Unlock()
	if err := t.prepare(); err != nil {
		t.Discard()
		return nil, err
	}
	return t, nil
}

// Discard forgets a tree whose process was not started.
func (t *Tree) Discard() {
	o := t.owner.ownership
	o.mu.Lock()
	delete(t.owner.running, t.number)
	o.mu.Unlock()
	if !t.release() {
		t.watch()
	}
	t.owner.trees.Done()
}

// Reap calls reap, which reaps the leader if it has ended. Meanwhile no method mistakes
// another process, to which the kernel gives the leader's number, for the leader.
func (t *Tree) Reap(reap func() bool) (done bool) {
	t.owner.ownership.mu.Lock()
	defer t.owner.ownership.mu.Unlock()
	t.reapedAt = now()
	t.reaped = reap()
	return t.reaped
}

// Closed hands what the process has left over to its owner.
func (t *Tree) Closed() {
	o := t.owner.ownership
	left := !t.release()
	o.mu.Lock()
	delete(t.owner.running, t.number)
	t.proc = nil
	if left {
		t.owner.remains[t.number] = t
	} else {
		t.forgetLocked()
	}
	sweep := len(t.owner.remains) >= t.owner.sweepAt && !t.owner.sweeps
	if sweep {
		t.owner.sweeps = true
		t.owner.trees.Go(t.owner.sweep)
	}
	o.mu.Unlock()
	if left {
		t.watch()
	}
	t.owner.trees.Done()
}

// sweep forgets the closed processes that have left nothing running.
func (w *Owner) sweep() {
	o := w.ownership
	trees := w.left() // the sweep knows nothing about those that close meanwhile
	alive := w.alive(trees)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range trees {
		if !alive[t.number] && w.remains[t.number] == t {
			t.forgetLocked()
			delete(w.remains, t.number)
		}
	}
	w.sweepAt = max(w.firstSweep, 2*len(w.remains))
	w.sweeps = false
}

// left lists the trees of closed processes.
func (w *Owner) left() []*Tree {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	trees := make([]*Tree, 0, len(w.remains))
	for _, t := range w.remains {
		trees = append(trees, t)
	}
	return trees
}

// Background is a process that a closed process has left running.
type Background struct {
	ID            string // names it for SignalBackground, as long as the machine runs
	Name          string // of the process that left it; see TreeOptions
	Pid           int
	Parent        int      // its parent's process id
	Argv          []string // as it shows it, shortened by ShortArgv; nil when it shows none
	ArgvTruncated bool
}

// IsBackgroundID reports whether an id has the form of a Background.ID. A client may
// give a process of its own such an id as well.
func IsBackgroundID(id string) bool { return strings.HasPrefix(id, "bg-") }

// UnknownBackgroundError says that no process which the owner knows has the ID.
type UnknownBackgroundError struct{ ID string }

func (e *UnknownBackgroundError) Error() string {
	return fmt.Sprintf("no process %s was left running, or it has ended", e.ID)
}

// killTimeout is how long a tree is killed again and again before it is given up. Only
// what the kernel cannot kill lasts so long.
const killTimeout = 10 * time.Second

const (
	// endSlice is how many processes End kills at once. Each uses processor time
	// to die, and a large session all at once would starve the rest of the machine.
	endSlice = 32
	// endPatience bounds how long End waits for a slice before it kills the next.
	endPatience = 50 * time.Millisecond
)

// End ends all processes of the owner and begins to kill what closed ones have left
// running. No process can be started for the owner any more. Wait waits until all are
// gone.
func (w *Owner) End(cause protocol.EndedBy) {
	o := w.ownership
	o.mu.Lock()
	w.ended = true
	procs := make([]Process, 0, len(w.running))
	for _, t := range w.running {
		if t.leader != 0 { // else its start notices
			procs = append(procs, t.proc)
		}
	}
	o.mu.Unlock()
	killOthers := w.collect()
	for slice := range slices.Chunk(procs, endSlice) {
		for _, p := range slice {
			p.End(cause, killOthers != nil)
		}
		awaitReaped(slice, endPatience)
	}
	if killOthers != nil {
		killOthers()
	}
}

// awaitReaped waits until the leaders of the processes have been reaped, at most for
// patience.
func awaitReaped(procs []Process, patience time.Duration) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, p := range procs {
		select {
		case <-p.Reaped():
		case <-late.C:
			return
		}
	}
}

func (w *Owner) hasEnded() bool {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	return w.ended
}

// Wait waits until everything that an ended owner owns is gone. The caller sees to it
// that its processes close: somebody must read or abandon their output.
func (w *Owner) Wait() {
	w.trees.Wait()
	w.clear()
	w.Forget()
}

// Forget gives up the processes that are left running; nobody owns them any more.
func (w *Owner) Forget() {
	o := w.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range w.remains {
		t.forgetLocked()
	}
	clear(w.remains)
	if o.owners[w.index] == w {
		delete(o.owners, w.index)
	}
}
