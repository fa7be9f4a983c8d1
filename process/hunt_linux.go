package process

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// hunt kills what matches until there is none.
type hunt struct {
	name     string // for the log
	match    func(origin) bool
	deadline time.Time
	looks    int // that were for it
	idle     int // of them, the latest in a row that found nothing
	done     chan struct{}
}

const (
	// maxPause is between two looks for what has been killed.
	maxPause = 100 * time.Millisecond
	// maxRest is the longest rest after a look. A look may seem to have taken very
	// long because the whole program was stopped.
	maxRest = time.Second
	// minLooks is how many looks a hunt has before it gives up. Its time may have
	// passed while the program was stopped.
	minLooks = 10
	// maxIdle is how many looks that find nothing end a hunt although orphans
	// end all the time. A process that forks and exits as fast as it can is
	// seen by one of them, and killed.
	maxIdle = 50
)

// orphansReaped counts the orphans that have ended. If one has during a look,
// it may have left a child that the look was too early for.
var orphansReaped atomic.Uint64

// hunt kills what matches; the channel is closed when nothing is left, or when
// the time is up. All hunts share one look at the system's processes.
func (o *Ownership) hunt(name string, match func(origin) bool) <-chan struct{} {
	h := &hunt{name: name, match: match, deadline: time.Now().Add(killTimeout), done: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hunts = append(o.hunts, h)
	if !o.hunting {
		o.hunting = true
		go o.runHunts() // ends with the last hunt, each of which has a deadline
	}
	return h.done
}

func (o *Ownership) runHunts() {
	killed := make(map[procfs.Stat]bool) // by number and start
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		o.mu.Lock()
		hunts := slices.Clone(o.hunts)
		o.mu.Unlock()
		reaped := orphansReaped.Load()
		begun := time.Now()
		found := make([]int, len(hunts))
		fresh := false // something has come, and may go on coming
		var refused error
		unseen := o.look(func(from origin, st procfs.Stat) {
			for i, h := range hunts {
				if !h.match(from) {
					continue
				}
				found[i]++
				id := procfs.Stat{Pid: st.Pid, Start: st.Start}
				fresh = fresh || !killed[id]
				killed[id] = true
				if err := signalProcess(st, unix.SIGKILL); err != nil {
					refused = err
				}
			}
		})
		if unseen != nil { // what could not be looked at may be one of them
			refused = unseen
			for i := range found {
				found[i]++
			}
		}
		quiet := orphansReaped.Load() == reaped
		if o.endHunts(hunts, found, quiet, refused) {
			return
		}
		if fresh || slices.Max(found) == 0 {
			pause = time.Millisecond
		}
		time.Sleep(max(pause, min(time.Since(begun), maxRest))) // others need the processor, too
	}
}

// endHunts ends those that are over, and reports whether all are.
func (o *Ownership) endHunts(hunts []*hunt, found []int, quiet bool, refused error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := o.hunts[:0]
	for i, h := range hunts {
		h.looks++
		h.idle++
		if found[i] > 0 {
			h.idle = 0
		}
		late := h.looks >= minLooks && time.Now().After(h.deadline)
		if late && found[i] > 0 {
			log := o.log.With("of", h.name, "left", found[i])
			if refused != nil {
				log = log.With("error", refused)
			}
			log.Error("not everything could be killed")
		}
		if late || h.idle >= maxIdle || h.idle > 0 && quiet {
			close(h.done)
		} else {
			left = append(left, h)
		}
	}
	left = append(left, o.hunts[len(hunts):]...) // that have come meanwhile
	clear(o.hunts[len(left):])
	o.hunts = left
	o.hunting = len(o.hunts) > 0
	return !o.hunting
}

// collect looks for what matches and returns what kills it.
func (o *Ownership) collect(match func(origin) bool) (kill func()) {
	var found []procfs.Stat
	o.each(match, func(st procfs.Stat) { found = append(found, st) })
	return func() {
		for _, st := range found {
			_ = signalProcess(st, unix.SIGKILL) // a hunt will tell
		}
	}
}

// each calls f for every process whose origin matches.
func (o *Ownership) each(match func(origin) bool, f func(procfs.Stat)) {
	o.look(func(from origin, st procfs.Stat) {
		if match(from) {
			f(st)
		}
	})
}

// origin is where a process comes from. The zero value means from elsewhere.
type origin struct {
	owner      *Owner // nil: not known
	tree       *tree  // nil: not known
	descendant bool   // of this program
	orphan     bool   // it, or an ancestor, has come to this program as an orphan
	released   bool   // of a closed process whose descendants are kept
}

// look is one look at all processes of the system. It reads about them only as
// it goes: orphans first, then the youngest, for they may not last.
type look struct {
	o       *Ownership
	self    int
	stats   map[int]procfs.Stat
	origins map[int]origin
	orphans map[int]bool // children that this program has not started itself
	visited int
	unseen  error // why it could not look at something
}

// lookSlice is how many processes a look visits before others have their turn.
const lookSlice = 32

// look calls f for every process that runs and is not this one. The error says
// that it has not seen all of them.
func (o *Ownership) look(f func(origin, procfs.Stat)) error {
	l := newLook(o)
	for pid := range l.orphans {
		l.visit(pid, f)
	}
	pids, err := procfs.Pids()
	if err != nil {
		o.log.Error("cannot look for descendants", "error", err)
		return err
	}
	if o.series == 0 {
		// Ancestry is all there is, and killing destroys it.
		for _, pid := range pids {
			l.stat(pid)
		}
	}
	for _, pid := range slices.Backward(pids) {
		if !l.orphans[pid] {
			l.visit(pid, f)
		}
	}
	return l.unseen
}

func (l *look) visit(pid int, f func(origin, procfs.Stat)) {
	if l.visited++; l.visited%lookSlice == 0 {
		runtime.Gosched()
	}
	if st, ok := l.stat(pid); ok && !st.Ended() && pid != l.self {
		f(l.origin(pid), st)
	}
}

func newLook(o *Ownership) *look {
	l := &look{o: o, self: os.Getpid(), stats: make(map[int]procfs.Stat), origins: make(map[int]origin)}
	if o.subreaper {
		l.orphans = adopted(l.self)
	}
	return l
}

// adopted lists the orphans that have become children of this program: the
// kernel makes them children of its first thread, which starts none itself (see
// ReapOrphans).
func adopted(self int) map[int]bool {
	path := "/proc/self/task/" + strconv.Itoa(self) + "/children"
	text, err := sys.ReadFile(path)
	if err != nil {
		return nil // some kernels do not tell
	}
	orphans := make(map[int]bool)
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			orphans[pid] = true
		}
	}
	return orphans
}

func (l *look) stat(pid int) (procfs.Stat, bool) {
	st, ok := l.stats[pid]
	if ok {
		return st, st.Pid != 0
	}
	st, err := procfs.ReadStat(pid)
	if err != nil {
		st = procfs.Stat{}
		if short(err) {
			l.unseen = err
		}
	}
	l.stats[pid] = st
	return st, err == nil
}

// short reports whether a look failed for want of descriptors or memory, which
// says nothing about what it was for.
func short(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR)
}

// origin finds out where a process comes from: it is a leader; or its parent
// comes from somewhere; or it has a mark; or it is in the session of a leader.
func (l *look) origin(pid int) origin {
	if from, ok := l.origins[pid]; ok {
		return from
	}
	l.origins[pid] = origin{} // numbers that change hands could make a circle
	var from origin
	if st, ok := l.stat(pid); ok {
		from = l.find(st)
	}
	l.origins[pid] = from
	return from
}

func (l *look) find(st procfs.Stat) origin {
	if t := l.o.leader(st.Pid); t != nil {
		return origin{owner: t.owner, tree: t, descendant: true}
	}
	from := origin{descendant: st.Parent == l.self, orphan: st.Parent == l.self && l.orphans[st.Pid]}
	if st.Pid == 1 || st.Pid == l.self {
		return origin{}
	}
	if st.Parent > 1 && st.Parent != l.self {
		parent := l.origin(st.Parent)
		if parent.owner != nil || parent.released {
			return parent
		}
		from.descendant, from.orphan = parent.descendant, parent.orphan
	}
	if from.descendant || !l.o.subreaper {
		l.fromMark(&from, st)
	}
	return from
}

// fromMark tells where an orphan comes from by its mark, or by its session.
func (l *look) fromMark(from *origin, st procfs.Stat) {
	o := l.o
	owner, number, kept, marked := o.readMark(st.Pid)
	_, leaderAlive := l.stat(st.Session)
	o.mu.Lock()
	defer o.mu.Unlock()
	if marked {
		if from.owner = o.owners[owner]; from.owner != nil {
			if from.tree = from.owner.running[number]; from.tree == nil {
				from.tree = from.owner.remains[number]
			}
		}
		if kept && from.tree == nil {
			*from = origin{descendant: from.descendant, orphan: from.orphan, released: true}
		}
		return
	}
	// The number of a session belongs to it as long as it has members. When the
	// leader has been reaped and there is such a process, it is another's.
	if t := o.sessions[st.Session]; t != nil && !(t.reaped && leaderAlive) {
		from.owner, from.tree = t.owner, t
	}
}

// leader returns the tree that a process leads.
func (o *Ownership) leader(pid int) *tree {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.sessions[pid]; t != nil && !t.reaped {
		return t
	}
	return nil
}

// errNotTheSame says that a number belongs to another process by now.
var errNotTheSame = errors.New("the process has ended")

// signalProcess sends a signal to a process that was seen, never to another one
// that has its number by now. One that has ended is no error.
func signalProcess(seen procfs.Stat, sig unix.Signal) error {
	err := signalSame(seen, sig)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, procfs.ErrGone) || errors.Is(err, errNotTheSame) {
		return nil
	}
	return err
}

// signalSame does without a pidfd, which old kernels lack and containers refuse,
// if it has to: then the number could change hands between the look and the signal.
func signalSame(seen procfs.Stat, sig unix.Signal) error {
	pidfd, err := sys.PidfdOpen(seen.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return err
	}
	if err == nil {
		defer sys.Close(pidfd)
	}
	now, statErr := procfs.ReadStat(seen.Pid)
	switch {
	case statErr != nil:
		return statErr
	case now.Start != seen.Start, now.Ended():
		return errNotTheSame
	}
	if err == nil {
		err = sys.PidfdSendSignal(pidfd, sig, nil, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return sys.Kill(seen.Pid, sig)
	}
	return err
}
