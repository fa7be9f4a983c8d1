package process

import (
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
	// MeansCgroup is a control group for each process. Nothing gets out of it
	// but with the privilege to move itself.
	MeansCgroup Means = "cgroup"
	// MeansSubreaper makes the program the parent of all orphans among its
	// descendants, and tells by ancestry and by a mark whose they are.
	MeansSubreaper Means = "subreaper"
	// MeansProcessGroup is the process group and, on Linux, the ancestry at the
	// moment. A daemon that has left its group and lost its parent gets away.
	MeansProcessGroup Means = "processGroup"
)

// Ownership is how a program keeps hold of everything that its processes start.
// A program has one, and makes an [Owner] for each of its sessions. All methods
// may be called concurrently.
type Ownership struct {
	log   *slog.Logger
	means Means
	system

	mu        sync.Mutex
	owners    map[uint32]*Owner
	lastOwner uint32
}

// OwnershipOptions of NewOwnership. The zero value is right for a library: it
// changes nothing of the program that it is part of.
type OwnershipOptions struct {
	Log *slog.Logger // nil: discard

	// Subreaper makes this program the parent of all orphans among its
	// descendants. The caller runs ReapOrphans. Linux only.
	Subreaper bool
	// Cgroups is a directory that was claimed for this program in the hierarchy
	// of control groups; empty: use none, for the reason NoCgroups.
	Cgroups, NoCgroups string
	// Series tells the processes of this program from those of others. A
	// program and its keeper have the same, by NewSeries; 0: a new one.
	Series uint64
}

// NewOwnership prepares the strongest means that the options and the system
// allow.
func NewOwnership(opts *OwnershipOptions) (*Ownership, error) {
	if opts == nil {
		opts = &OwnershipOptions{}
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

// DefaultOwnership is by MeansProcessGroup, as processes are that are started
// without an owner.
var DefaultOwnership = sync.OnceValue(func() *Ownership {
	o, err := NewOwnership(nil)
	if err != nil {
		panic(err) // the zero options ask the system for nothing
	}
	return o
})

// Means tells by what descendants are found.
func (o *Ownership) Means() Means { return o.means }

// maxOwners is how many owners fit into a mark.
const maxOwners = 1<<16 - 1

// newOwner makes an owner that is not among those of the sessions.
func (o *Ownership) newOwner() *Owner {
	return &Owner{ownership: o, running: make(map[uint32]*tree), remains: make(map[uint32]*tree), sweepAt: firstSweep}
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
	running map[uint32]*tree // of processes that are not closed
	remains map[uint32]*tree // of closed ones that may have left something
	number  uint32           // given last
	sweepAt int              // how many remains make a look worthwhile
	sweeps  bool             // a look is going on
	ended   bool
}

// firstSweep is how many closed processes are remembered before a look at which
// of them have left anything running; the look costs more than a process.
const firstSweep = 1024

// tree is a process and everything that it starts.
type tree struct {
	owner  *Owner
	number uint32 // within the owner
	name   string
	kept   bool // what is left when it has closed may outlive the owner
	treeSystem

	// guarded by ownership.mu
	proc    *Process // nil once it is closed
	leader  int      // its process id; 0: not started
	program int      // the group of the program; another's than leader behind a launcher
	reaped  bool     // the leader has been waited for; its number may go to another
}

// plant makes the tree of a process that is about to be started.
func (w *Owner) plant(p *Process, spec Spec) (*tree, error) {
	o := w.ownership
	t := &tree{owner: w, name: p.opts.Name, kept: spec.KeepDescendants, proc: p}
	o.mu.Lock()
	if w.ended {
		o.mu.Unlock()
		return nil, &Error{Program: spec.Argv[0], Reason: "its session has ended"}
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
	if err := t.prepare(spec.Limits); err != nil {
		t.uproot()
		return nil, err
	}
	return t, nil
}

// uproot forgets a tree whose process was not started.
func (t *tree) uproot() {
	o := t.owner.ownership
	o.mu.Lock()
	delete(t.owner.running, t.number)
	o.mu.Unlock()
	if !t.release() {
		t.watch()
	}
	t.owner.trees.Done()
}

// reap runs what waits for the leader such that nobody takes the next process
// with its number for the leader.
func (t *tree) reap(reap func() bool) (done bool) {
	t.owner.ownership.mu.Lock()
	defer t.owner.ownership.mu.Unlock()
	t.reaped = reap()
	return t.reaped
}

// closed hands over what the process has left to its owner, or lets go of it if
// it is to be kept.
func (t *tree) closed() {
	o := t.owner.ownership
	left := !t.release()
	o.mu.Lock()
	delete(t.owner.running, t.number)
	t.proc = nil
	if left && !t.kept {
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

// sweep forgets the closed processes of which nothing is left.
func (w *Owner) sweep() {
	o := w.ownership
	trees := w.left() // of those that close meanwhile nothing is known
	alive := w.alive(trees)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range trees {
		if !alive[t.number] && w.remains[t.number] == t {
			t.forgetLocked()
			delete(w.remains, t.number)
		}
	}
	w.sweepAt = max(firstSweep, 2*len(w.remains))
	w.sweeps = false
}

// left lists the trees of closed processes.
func (w *Owner) left() []*tree {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	trees := make([]*tree, 0, len(w.remains))
	for _, t := range w.remains {
		trees = append(trees, t)
	}
	return trees
}

// Background is something that a closed process has left running.
type Background struct {
	ID            string // names it for SignalBackground, as long as the machine runs
	Name          string // of the process that left it; see Options.Name
	Pid           int
	Parent        int      // its parent's process id
	Argv          []string // as it shows it, the first maxArgvBytes; nil when it shows none
	ArgvTruncated bool
}

// IsBackgroundID reports whether an id has the form of those that Background
// gives. A client may give a process such an id as well.
func IsBackgroundID(id string) bool { return strings.HasPrefix(id, "bg-") }

// UnknownBackgroundError says that nothing of this owner has such an ID any
// more.
type UnknownBackgroundError struct{ ID string }

func (e *UnknownBackgroundError) Error() string {
	return fmt.Sprintf("no process %s was left running, or it has ended", e.ID)
}

// killTimeout is for how long a tree is killed again and again before it is
// given up: only what the kernel cannot kill lasts.
const killTimeout = 10 * time.Second

const (
	// endSlice is how many processes End kills at once. Each that dies takes
	// processor time of its own, and all of a large session together would take
	// it from the rest of the machine.
	endSlice = 32
	// endPatience bounds how long End waits for those before it kills the next.
	endPatience = 50 * time.Millisecond
)

// End ends all processes of the owner, and begins to kill what others have left.
// No process can be started for it any more. Wait waits until all are gone.
func (w *Owner) End(cause protocol.EndedBy) {
	o := w.ownership
	o.mu.Lock()
	w.ended = true
	procs := make([]*Process, 0, len(w.running))
	for _, t := range w.running {
		if t.leader != 0 { // else its start notices
			procs = append(procs, t.proc)
		}
	}
	o.mu.Unlock()
	others := w.collect()
	for slice := range slices.Chunk(procs, endSlice) {
		for _, p := range slice {
			if !p.noteEnding(cause, false) {
				continue
			}
			if others != nil {
				p.kill(func() {})
			} else {
				p.kill(p.tree.collect())
			}
		}
		awaitReaped(slice, endPatience)
	}
	if others != nil {
		others()
	}
}

// awaitReaped waits until the leaders of processes have been reaped, for a time.
func awaitReaped(procs []*Process, patience time.Duration) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, p := range procs {
		select {
		case <-p.reapedCh:
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

// Wait waits until everything that an ended owner owns is gone. Its processes
// must be closed, or close because somebody takes their output.
func (w *Owner) Wait() {
	w.trees.Wait()
	w.clear()
	w.forget()
}

// forget lets go of what is left.
func (w *Owner) forget() {
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
