package ownership

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sys"
)

// Kill kills the tree until it is gone, or killTimeout is over. The leader's group must
// have got SIGKILL already.
func (t *Tree) Kill() {
	o := t.owner.ownership
	if t.cgroup == nil {
		// Once all leaders have been reaped, the owner's Wait kills the rest in one
		// loop.
		o.mu.Lock()
		waits := t.owner.ended && t.reaped != 0
		o.mu.Unlock()
		if !waits {
			<-o.kill("process "+t.opts.Name, func(of attribution) bool { return of.tree == t })
		}
		return
	}
	o.killGroups("process "+t.opts.Name, t)
}

// Collect must be called before the leader is killed. It finds the processes to which only a
// living leader leads, and returns a function that kills them afterwards.
func (t *Tree) Collect() (kill func()) {
	o := t.owner.ownership
	switch {
	case t.cgroup != nil:
		return func() { _ = t.cgroup.Kill() } // Kill retries it and reports errors
	case t.tag == 0:
		return o.collect(func(of attribution) bool { return of.tree == t })
	}
	return func() {}
}

// Signal sends a signal to the processes of the tree whose process group and session match.
// Each is known to belong to the tree when it gets the signal. Signal returns an error if
// it could not signal, or see, all of them.
func (t *Tree) Signal(sig unix.Signal, match func(group, session int) bool) error {
	var refused error
	send := func(st procfs.Stat) {
		if !match(st.Group, st.Session) {
			return
		}
		if err := sendSignal(st, sig); !errors.Is(err, procfs.ErrGone) {
			refused = errors.Join(refused, err)
		}
	}
	var scanErr error
	if t.cgroup != nil {
		scanErr = t.eachInGroup(send)
	} else {
		scanErr = t.owner.ownership.scan(func(of attribution, st procfs.Stat) {
			if of.tree == t {
				send(st)
			}
		})
	}
	return errors.Join(refused, scanErr)
}

// killBackground kills the background processes of an owner.
func (w *Owner) killBackground() {
	o := w.ownership
	var grouped []*Tree
	mustScan := o.cgroups == nil && (w.hasStarted() || w.isLast() && hasChildren())
	for _, t := range w.list(true) {
		if t.cgroup != nil {
			grouped = append(grouped, t)
		} else {
			mustScan = true
		}
	}
	for _, t := range grouped {
		_ = t.cgroup.Kill() // killGroups retries it and reports errors
	}
	if mustScan {
		// Unowned processes end with the last session.
		<-o.kill("session", func(of attribution) bool { return of.owner == w || of.relation == unowned && w.isLast() })
	}
	o.killGroups("session", slices.Clone(grouped)...)
	for _, t := range grouped {
		t.watchEmpty() // for processes that cannot be killed
	}
}

// KillAll kills every descendant of this program, including those moved out of their
// control groups. It returns when all are gone or the timeout has expired.
func (o *Ownership) KillAll(timeout time.Duration) {
	if o.cgroups != nil {
		_ = o.cgroups.KillAll() // the kill loop below reports errors
	}
	if !o.subreaper || os.Getpid() == 1 || !hasChildren() {
		return // when PID 1 exits, the kernel kills the rest
	}
	select {
	case <-o.kill("server", func(of attribution) bool { return of.relation != unrelated }):
	case <-time.After(timeout):
	}
}

// collect finds the processes that could not be found any more once the leaders are dead,
// and returns a function that kills them; nil if all could still be found.
func (w *Owner) collect() (kill func()) {
	if o := w.ownership; o.cgroups == nil && o.programID == 0 {
		return o.collect(func(of attribution) bool { return of.owner == w })
	}
	return nil
}

// killGroups kills the processes in the control groups of the trees until none is left or
// killTimeout is over.
func (o *Ownership) killGroups(target string, trees ...*Tree) {
	deadline := time.Now().Add(killTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		var failure error
		trees = slices.DeleteFunc(trees, func(t *Tree) bool {
			err := t.cgroup.Kill()
			populated, readErr := t.cgroup.Populated()
			if err = errors.Join(err, readErr); err != nil {
				failure = err
			}
			return err == nil && !populated
		})
		if len(trees) == 0 {
			return
		}
		if time.Now().After(deadline) {
			o.log.Error("killed processes have not ended", "of", target, "error", failure)
			return
		}
		time.Sleep(pause)
	}
}

// hasChildren reports whether this program has children. A subreaper without children has
// no descendants.
func hasChildren() bool {
	err := sys.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	return !errors.Is(err, unix.ECHILD)
}

// killRequest asks the kill loop to kill the processes that match until there are none.
type killRequest struct {
	target    string // for the log
	match     func(attribution) bool
	deadline  time.Time
	scans     int
	idleScans int // the latest consecutive scans that found nothing
	done      chan struct{}
}

const (
	// maxPause is the longest pause between two scans.
	maxPause = 100 * time.Millisecond
	// maxScanRest bounds the pause after a slow scan, because a scan also seems slow if
	// the whole program was stopped.
	maxScanRest = time.Second
	// minScans is the number of scans before the loop gives up, because the deadline
	// may have passed while the program was stopped.
	minScans = 10
	// maxIdleScans is how many scans without a match are enough even if orphans keep
	// exiting. One of that many scans would catch a process that forks and exits as
	// fast as it can.
	maxIdleScans = 50
)

// orphansReaped counts the reaped orphans. An orphan that exits during a scan may leave a
// child that the scan has missed.
var orphansReaped atomic.Uint64

// kill kills the processes that match. It closes the channel when none is left or the
// deadline has passed, or at once if this program cannot see its descendants. One loop,
// with common scans, serves all requests.
func (o *Ownership) kill(target string, match func(attribution) bool) <-chan struct{} {
	k := &killRequest{target: target, match: match, deadline: time.Now().Add(killTimeout), done: make(chan struct{})}
	if o.procErr != nil {
		close(k.done) // scans would find nothing
		return k.done
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kills = append(o.kills, k); len(o.kills) == 1 {
		go o.killLoop() // ends with the last request, each of which has a deadline
	}
	return k.done
}

func (o *Ownership) killLoop() {
	killed := make(map[processKey]bool)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		o.mu.Lock()
		all := slices.Clone(o.kills)
		o.mu.Unlock()
		reaped := orphansReaped.Load()
		begun := time.Now()
		found := make([]int, len(all))
		fresh := false // a new process was found, and it may have forked
		var refused error
		s := newScan(o)
		s.run(func(of attribution, st procfs.Stat) {
			for i, k := range all {
				if !k.match(of) {
					continue
				}
				found[i]++
				fresh = fresh || !killed[keyOf(st)]
				killed[keyOf(st)] = true
				if err := sendSignal(st, unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
					refused = err
				}
			}
		})
		quiet := !s.hasDeadOrphan() && orphansReaped.Load() == reaped
		if s.err != nil { // processes that were not seen may match
			refused = s.err
			for i := range found {
				found[i]++
			}
		}
		if o.finishKills(all, found, quiet, refused) {
			return
		}
		if fresh || slices.Max(found) == 0 {
			pause = time.Millisecond
		}
		time.Sleep(max(pause, min(time.Since(begun), maxScanRest))) // leave processor time to others
	}
}

// finishKills completes the requests that are done, and reports whether all are.
func (o *Ownership) finishKills(all []*killRequest, found []int, quiet bool, refused error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	remaining := o.kills[:0]
	for i, k := range all {
		k.scans++
		k.idleScans++
		if found[i] > 0 {
			k.idleScans = 0
		}
		late := k.scans >= minScans && time.Now().After(k.deadline)
		if late && found[i] > 0 {
			log := o.log.With("of", k.target, "left", found[i])
			if refused != nil {
				log = log.With("error", refused)
			}
			log.Error("cannot kill every process")
		}
		if late || k.idleScans >= maxIdleScans || k.idleScans > 0 && quiet {
			close(k.done)
		} else {
			remaining = append(remaining, k)
		}
	}
	remaining = append(remaining, o.kills[len(all):]...) // added during the scan
	clear(o.kills[len(remaining):])
	o.kills = remaining
	return len(remaining) == 0
}

// collect finds the processes that match and returns a function that kills them.
func (o *Ownership) collect(match func(attribution) bool) (kill func()) {
	var found []procfs.Stat
	_ = o.scan(func(of attribution, st procfs.Stat) { // the kill loop finds the processes that this scan missed
		if match(of) {
			found = append(found, st)
		}
	})
	return func() {
		for _, st := range found {
			_ = sendSignal(st, unix.SIGKILL) // the kill loop retries it and reports errors
		}
	}
}

// sendSignal sends a signal to the process that was seen, and not to another one that has
// reused its pid. The error is procfs.ErrGone if the process has exited.
//
// Old kernels lack pidfds, and some containers forbid them. Then the pid could be reused
// between the check and the signal. If descriptors have run out, sendSignal fails instead.
func sendSignal(seen procfs.Stat, sig unix.Signal) error {
	pidfd, err := sys.PidfdOpen(seen.Pid, 0)
	switch {
	case err == nil:
		defer sys.Close(pidfd)
	case errors.Is(err, unix.ESRCH):
		return procfs.ErrGone
	case isShortage(err):
		return fmt.Errorf("hold process %d: %w", seen.Pid, err)
	}
	now, statErr := procfs.ReadStat(seen.Pid)
	switch {
	case statErr != nil:
		return statErr
	case now.Start != seen.Start, now.Ended():
		return procfs.ErrGone
	}
	if err == nil {
		err = sys.PidfdSendSignal(pidfd, sig, nil, 0)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		err = sys.Kill(seen.Pid, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return procfs.ErrGone
	}
	return err
}
