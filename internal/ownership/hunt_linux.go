package ownership

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// hunt kills the processes that match until there are none.
type hunt struct {
	name     string // for the log
	match    func(origin) bool
	deadline time.Time
	scans    int // how many it has had
	idle     int // how many of the latest found nothing
	done     chan struct{}
}

const (
	// maxPause is the longest pause between two scans.
	maxPause = 100 * time.Millisecond
	// maxRest is the longest rest after a slow scan. A scan may only seem slow
	// because the whole program was stopped.
	maxRest = time.Second
	// minScans is how many scans a hunt has before it gives up. Its time may have
	// passed while the program was stopped.
	minScans = 10
	// maxIdle is how many scans that find nothing end a hunt although orphans end
	// all the time. One of them sees a process that forks and exits as fast as it
	// can, and kills it.
	maxIdle = 50
)

// orphansReaped counts the orphans that have ended and were reaped. One that ends during a
// scan may have left a child which the scan was too early to see, reaped or not.
var orphansReaped atomic.Uint64

// hunt kills the processes that match. It closes the channel when none is left or
// the time is up, or at once if this program is blind. All hunts share one scan of the system's processes.
func (o *Ownership) hunt(name string, match func(origin) bool) <-chan struct{} {
	h := &hunt{name: name, match: match, deadline: time.Now().Add(killTimeout), done: make(chan struct{})}
	if o.foreign != nil {
		close(h.done) // there is nothing to find
		return h.done
	}
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
		fresh := false // a new process was found, and more may follow
		var refused error
		s := newScan(o)
		s.run(func(from origin, st procfs.Stat) {
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
		if s.unseen != nil { // what the scan could not see may be one of them
			refused = s.unseen
			for i := range found {
				found[i]++
			}
		}
		quiet := !s.endedOrphan() && orphansReaped.Load() == reaped
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
		h.scans++
		h.idle++
		if found[i] > 0 {
			h.idle = 0
		}
		late := h.scans >= minScans && time.Now().After(h.deadline)
		if late && found[i] > 0 {
			log := o.log.With("of", h.name, "left", found[i])
			if refused != nil {
				log = log.With("error", refused)
			}
			log.Error("cannot kill every process")
		}
		if late || h.idle >= maxIdle || h.idle > 0 && quiet {
			close(h.done)
		} else {
			left = append(left, h)
		}
	}
	left = append(left, o.hunts[len(hunts):]...) // those added meanwhile
	clear(o.hunts[len(left):])
	o.hunts = left
	o.hunting = len(o.hunts) > 0
	return !o.hunting
}

// collect finds the processes that match and returns a function that kills them.
func (o *Ownership) collect(match func(origin) bool) (kill func()) {
	var found []procfs.Stat
	o.each(match, func(st procfs.Stat) { found = append(found, st) })
	return func() {
		for _, st := range found {
			_ = signalProcess(st, unix.SIGKILL) // a hunt repeats it and reports
		}
	}
}

// each calls f for every process whose origin matches.
func (o *Ownership) each(match func(origin) bool, f func(procfs.Stat)) {
	o.scan(func(from origin, st procfs.Stat) {
		if match(from) {
			f(st)
		}
	})
}

// errNotTheSame says that another process has the process id by now.
var errNotTheSame = errors.New("the process has ended")

// signalProcess sends a signal to a process that a scan has seen, and never to
// another one that has its id by now. That the process has ended is no error.
func signalProcess(seen procfs.Stat, sig unix.Signal) error {
	err := signalSame(seen, sig)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, procfs.ErrGone) || errors.Is(err, errNotTheSame) {
		return nil
	}
	return err
}

// signalSame is signalProcess, but returns an error for a process that has ended. Old
// kernels lack pidfds and some containers refuse them. Without one the id could pass
// to another process between the check and the signal.
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
