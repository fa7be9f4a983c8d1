// Package ownership tracks all descendants of a program's processes, so that they can be
// listed and killed.
//
// A program has one [Ownership]. Each session has an [Owner], and each of its processes a
// [Tree]: the leader, which package process starts, and all its descendants. The package
// sees a process only through the interface [Process].
//
// A tree is tracked by the strongest [Mechanism] that the system grants. With control
// groups the kernel keeps the list, and nothing else is consulted, with two exceptions: a
// process for which no group could be made, and at the end of the program the processes
// that were moved out of their groups. Without control groups, a scan reads /proc and
// attributes each process to an owner. The first rule that matches decides:
//
//	session   The process started in the session of a tree's leader.
//	parent    Its parent belongs to a tree.
//	tag       It has the tag of a tree. Only descendants of this program are
//	          checked, and processes whose parent cannot be seen.
//	adopted   This program has adopted it or an ancestor. Then it has no owner,
//	          and ends with the last session.
//
// Any other process is unrelated, or was started by this program for itself.
//
// No process can fake its session or parent, but numbers are reused. So a rule matches only
// if both processes had their numbers at the same time, according to their start times. A
// scan reports whether it was complete.
//
// An owner remembers the trees of open processes, and those of closed ones that may have
// left descendants running; from time to time it prunes the closed ones of which a scan
// finds nothing. A kill loop repeats scans and kills the processes that they find, until
// nothing is left or killTimeout is over, because the kernel cannot kill every process.
//
// Ownership.mu guards all owners and trees. No other lock is taken while it is held.
// Process.mu may be locked before it.
package ownership

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"execserver/protocol"
)

// Mechanism is how a program tracks the descendants of its processes (docs/operations.md,
// "What a process owns").
type Mechanism string

// The mechanisms, strongest first.
const (
	// MechanismCgroup is a control group for each process. Only a process with the
	// privilege to move itself escapes.
	MechanismCgroup Mechanism = "cgroup"
	// MechanismSubreaper makes the program the parent of all orphaned descendants,
	// which are attributed to their owners by session, ancestry and tag.
	MechanismSubreaper Mechanism = "subreaper"
	// MechanismProcessGroup is the process group and, on Linux, the present ancestry. A
	// daemon that has left its group and lost its parent escapes.
	MechanismProcessGroup Mechanism = "processGroup"
)

// Ownership tracks all descendants of a program's processes. A program has one, and makes
// an [Owner] for each of its sessions. All methods may be called concurrently.
type Ownership struct {
	log       *slog.Logger
	mechanism Mechanism
	system

	mu        sync.Mutex
	owners    map[uint32]*Owner // by index
	leaders   map[int]*Tree     // by pid of the leader
	lastOwner uint32
}

// Options are the options of New. The zero value is right for a library: it changes no
// global state of the program.
type Options struct {
	Log *slog.Logger // nil: discard

	// Subreaper makes this program the parent of all orphaned descendants. The caller
	// must run ReapOrphans. Linux only.
	Subreaper bool
	// Cgroups is a directory in the control group hierarchy that was claimed for this
	// program. If it is empty, no control groups are used, for the reason NoCgroups.
	Cgroups, NoCgroups string
}

// New selects the strongest mechanism that the options and the system allow.
func New(opts *Options) (*Ownership, error) {
	if opts == nil {
		opts = &Options{}
	}
	o := &Ownership{log: opts.Log, owners: make(map[uint32]*Owner), leaders: make(map[int]*Tree)}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	if err := o.prepare(opts); err != nil {
		return nil, err
	}
	return o, nil
}

// Default returns the Ownership, by MechanismProcessGroup, of processes that are started
// without an owner.
var Default = sync.OnceValue(func() *Ownership {
	o, err := New(nil)
	if err != nil {
		panic(err) // the zero options make no system calls
	}
	return o
})

// Mechanism returns the mechanism by which descendants are found.
func (o *Ownership) Mechanism() Mechanism { return o.mechanism }

// maxOwners is the number of owners that fit into a tag.
const maxOwners = 1<<16 - 1

// NewSoleOwner makes an owner for one process outside any session. The caller must call
// Forget.
func NewSoleOwner() *Owner { return Default().newOwner() }

// newOwner makes an owner without an index.
func (o *Ownership) newOwner() *Owner {
	return &Owner{ownership: o, trees: make(map[uint32]*Tree), pruneAt: firstPrune}
}

// NewOwner makes the owner of a session.
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

// Owner owns the processes of a session and their descendants. All methods may be called
// concurrently.
type Owner struct {
	ownership *Ownership
	index     uint32         // in tags; 0: none was free
	unclosed  sync.WaitGroup // trees, and prune

	// guarded by ownership.mu
	trees      map[uint32]*Tree // by number
	lastNumber uint32           // of the latest tree
	pruneAt    int              // the number of trees that triggers prune; math.MaxInt while it runs
	ended      bool
}

// firstPrune is the number of trees at which an owner first prunes, which costs more than
// starting a process.
const firstPrune = 1024

// Process is the owner's view of a process of package process.
type Process interface {
	// End begins to kill the process and its descendants, and reports whether it was
	// running. If found is true, the caller has already found the descendants outside the
	// process group, and kills them.
	End(cause protocol.EndedBy, found bool) (running bool)
	// Reaped is closed when the leader has been waited for.
	Reaped() <-chan struct{}
}

// TreeOptions are the options of NewTree.
type TreeOptions struct {
	Name   string // of the process in Background
	Limits Limits
}

// Limits apply to a process together with all its descendants. Zero means no limit.
type Limits struct {
	MemoryBytes int64
	Pids        int64   // processes and threads
	CPUs        float64 // processors
}

// The limits, as named on the wire.
const (
	LimitMemory = "memoryBytes"
	LimitPids   = "pids"
	LimitCPUs   = "cpus"
)

// LimitError reports a limit that cannot be enforced.
type LimitError struct {
	Limit   string // LimitMemory, LimitPids or LimitCPUs
	Missing string // what enforcing it would need
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("cannot enforce the limit %s: %s", e.Limit, e.Missing)
}

// Tree is a process and all its descendants.
type Tree struct {
	owner  *Owner
	number uint32 // within the owner
	opts   TreeOptions
	treeSystem

	// guarded by ownership.mu
	proc   Process // nil once it is closed
	leader int     // its pid; 0: not started
	reaped uint64  // when the leader was reaped, in units of procfs.Stat.Start; 0: not reaped
}

// ErrEnded reports that the owner has ended and accepts no new processes.
var ErrEnded = errors.New("its session has ended")

// NewTree makes the tree of a process that is about to be started. The caller must then
// call either Started and, in the end, Closed, or Discard. The error is ErrEnded or a
// *LimitError.
func (w *Owner) NewTree(p Process, opts TreeOptions) (*Tree, error) {
	o := w.ownership
	t := &Tree{owner: w, opts: opts, proc: p}
	o.mu.Lock()
	if w.ended {
		o.mu.Unlock()
		return nil, ErrEnded
	}
	for {
		w.lastNumber = (w.lastNumber + 1) % (1 << 24)
		if w.trees[w.lastNumber] == nil {
			break
		}
	}
	t.number = w.lastNumber // reused only after all numbers have been used
	w.unclosed.Add(1)
	o.mu.Unlock()
	if err := t.prepare(); err != nil {
		t.Discard()
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	w.trees[t.number] = t // only now, because scans read the fields that prepare sets
	return t, nil
}

// Discard removes a tree whose process was not started.
func (t *Tree) Discard() {
	o := t.owner.ownership
	o.mu.Lock()
	t.removeLocked()
	o.mu.Unlock()
	if !t.releaseIfEmpty() {
		t.watchEmpty()
	}
	t.owner.unclosed.Done()
}

// Started records the leader of the tree. It reports whether the owner has ended in the
// meantime.
func (t *Tree) Started(pid int) (late bool) {
	o := t.owner.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	t.leader, o.leaders[pid] = pid, t
	return t.owner.ended
}

// removeLocked removes the tree from its owner.
func (t *Tree) removeLocked() {
	if t.owner.trees[t.number] == t {
		delete(t.owner.trees, t.number)
	}
	if o := t.owner.ownership; o.leaders[t.leader] == t { // otherwise the pid has been reused
		delete(o.leaders, t.leader)
	}
}

// Reap calls reap, which reaps the leader if it has exited. Until Reap returns, no method
// mistakes another process that reuses the pid for the leader.
func (t *Tree) Reap(reap func() bool) (done bool) {
	t.owner.ownership.mu.Lock()
	defer t.owner.ownership.mu.Unlock()
	at := now()
	if done = reap(); done {
		t.reaped = at
	}
	return done
}

// Closed hands the descendants that the process leaves behind over to its owner.
func (t *Tree) Closed() {
	w := t.owner
	o := w.ownership
	left := !t.releaseIfEmpty()
	o.mu.Lock()
	t.proc = nil
	if !left {
		t.removeLocked()
	}
	if at := w.pruneAt; len(w.trees) >= at {
		w.pruneAt = math.MaxInt
		w.unclosed.Go(func() { w.prune(at) })
	}
	o.mu.Unlock()
	if left {
		t.watchEmpty()
	}
	w.unclosed.Done()
}

// prune removes closed processes that have left nothing running. at is the value of pruneAt
// that triggered it.
func (w *Owner) prune(at int) {
	o := w.ownership
	closed := w.list(true) // the scan may miss descendants of those that close meanwhile
	alive, err := w.alive(closed)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range closed {
		if err == nil && !alive[t] {
			t.removeLocked()
		}
	}
	w.pruneAt = max(at, 2*len(w.trees))
}

// list returns the trees of the owner, or only those of closed processes.
func (w *Owner) list(closed bool) []*Tree {
	w.ownership.mu.Lock()
	defer w.ownership.mu.Unlock()
	trees := make([]*Tree, 0, len(w.trees))
	for _, t := range w.trees {
		if !closed || t.proc == nil {
			trees = append(trees, t)
		}
	}
	return trees
}

// Background is a process that a closed process has left running.
type Background struct {
	ID            string // for SignalBackground; unique until the machine reboots
	Name          string // of the process that started it; see TreeOptions
	Pid           int
	Parent        int      // the parent's pid
	Argv          []string // shortened by ShortArgv; nil if not available
	ArgvTruncated bool
}

// IsBackgroundID reports whether an id has the form of a Background.ID. A client may also
// give its own process such an id.
func IsBackgroundID(id string) bool { return strings.HasPrefix(id, "bg-") }

// UnknownBackgroundError reports that no process known to the owner has the ID.
type UnknownBackgroundError struct{ ID string }

func (e *UnknownBackgroundError) Error() string {
	return fmt.Sprintf("no process %s was left running, or it has ended", e.ID)
}

// Usage is the resource usage of a process and all its descendants.
type Usage struct {
	Name        string        // of the process, as in TreeOptions
	Processes   int           // running now
	CPU         time.Duration // without control groups it excludes orphans that have exited
	MemoryBytes int64         // now; shared memory counts for each process
}

// killTimeout bounds how long a tree is killed repeatedly. Only processes that the kernel
// cannot kill last so long.
const killTimeout = 10 * time.Second

const (
	// endBatch is the number of processes that End kills at once. Each uses processor
	// time to exit, and a large session all at once would starve the rest of the
	// machine.
	endBatch = 32
	// endBatchTimeout bounds how long End waits for one batch before it kills the next.
	endBatchTimeout = 50 * time.Millisecond
)

// End ends all processes of the owner and begins to kill the background processes. No
// further process can be started for the owner. Wait waits until all are gone.
func (w *Owner) End(cause protocol.EndedBy) {
	o := w.ownership
	o.mu.Lock()
	w.ended = true
	procs := make([]Process, 0, len(w.trees))
	for _, t := range w.trees {
		if t.proc != nil && t.leader != 0 { // otherwise Started reports it
			procs = append(procs, t.proc)
		}
	}
	o.mu.Unlock()
	killOthers := w.collect()
	for batch := range slices.Chunk(procs, endBatch) {
		for _, p := range batch {
			p.End(cause, killOthers != nil)
		}
		waitReaped(batch, endBatchTimeout)
	}
	if killOthers != nil {
		killOthers()
	}
}

// waitReaped waits until the leaders of the processes have been reaped, at most for
// timeout.
func waitReaped(procs []Process, timeout time.Duration) {
	late := time.NewTimer(timeout)
	defer late.Stop()
	for _, p := range procs {
		select {
		case <-p.Reaped():
		case <-late.C:
			return
		}
	}
}

// Wait waits until everything that an ended owner owns is gone. The caller must ensure that
// the processes can close: their output must be read or abandoned.
func (w *Owner) Wait() {
	w.unclosed.Wait()
	w.killBackground()
	w.Forget()
}

// Forget gives up ownership of the background processes.
func (w *Owner) Forget() {
	o := w.ownership
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range w.trees {
		if t.proc == nil {
			t.removeLocked()
		}
	}
	if o.owners[w.index] == w {
		delete(o.owners, w.index)
	}
}

// maxArgvBytes bounds the part of a command line that is retained; it may be two megabytes
// long.
const maxArgvBytes = 1 << 10

// ShortArgv copies the first maxArgvBytes of a command line.
func ShortArgv(argv []string) (short []string, truncated bool) {
	room := maxArgvBytes
	for _, arg := range argv {
		if room < 0 {
			return short, true
		}
		if len(arg) > room {
			for room > 0 && !utf8.RuneStart(arg[room]) {
				room--
			}
			return append(short, strings.Clone(arg[:room])), true
		}
		short = append(short, arg)
		room -= len(arg) + 1 // counting the separator also bounds the number of arguments
	}
	return short, false
}
