package process

import (
	"syscall"
	"time"

	"execserver/protocol"
)

const (
	// DefaultDrainTimeout bounds how long closed waits after the exit for streams
	// that descendants hold and write to.
	DefaultDrainTimeout = 2 * time.Second

	// quietTime is how long the streams must be quiet before a process whose leader
	// has exited closes although descendants hold them.
	quietTime = 250 * time.Millisecond
)

// closeDelay returns how long closed waits at most for streams that descendants hold; 0 means
// as long as they do.
func (o *Options) closeDelay(asked protocol.Drain) time.Duration {
	switch {
	case asked == protocol.DrainEOF, asked == "" && o.DrainTimeout < 0:
		return 0
	case o.DrainTimeout > 0:
		return o.DrainTimeout
	}
	return DefaultDrainTimeout
}

// A phase of a process's life. The package comment draws them.
type phase int

const (
	phaseRunning phase = iota
	phaseDraining
	phaseExited
	phaseClosed
	phaseOver
)

// life is the state of a process that only the goroutine of Process.live uses.
type life struct {
	p     *Process
	child *child

	phase  phase
	leader leaderEnd       // from phaseDraining on
	ending ending          // the cause, and what was done
	killed bool            // SIGKILL was sent to the tree
	gone   <-chan struct{} // closed when the killed tree is gone; nil: not killed, or gone already

	limit  <-chan time.Time // when the time limit of the process is over
	grace  <-chan time.Time // when a process that was asked to end is killed
	killAt time.Time        // when grace fires

	quiet    *time.Timer // when the streams may have been quiet for long enough; nil: does not count
	exitedAt time.Time
	settled  bool // the streams need not end before closed

	held []*stream // those that descendants held at closed
}

// live sees a process to its end, and returns when it is over. It alone decides when the
// process exits, closes, and is killed.
func (p *Process) live(child *child) {
	l := &life{p: p, child: child}
	if timeout := p.limits.Timeout; timeout > 0 {
		l.limit = time.After(timeout)
	}
	end := make(chan leaderEnd, 1)
	go func() { end <- p.reap(child) }() // ends with the leader
	for {
		// What advance sees must be what the select waits for, so both have these.
		drained, ended := l.drained(), l.ended()
		if l.advance(drained == nil, ended == nil); l.phase == phaseOver {
			return
		}
		asks, quiet := p.asks, (<-chan time.Time)(nil)
		if l.phase >= phaseClosed {
			asks = nil // nobody asks any more; see do
		}
		if l.quiet != nil {
			quiet = l.quiet.C
		}
		select {
		case l.leader = <-end:
			l.drain()
		case <-drained:
		case <-ended:
		case f := <-asks:
			f(l)
		case <-l.limit:
			l.endGracefully(protocol.EndedByTimeout, TimeoutGrace)
		case <-l.grace:
			l.kill(p.tree.Collect())
		case <-quiet:
			l.settle()
		case <-l.gone:
			l.gone = nil
			p.finishStreams() // which others may still hold
		}
	}
}

// do has the goroutine of live call f, and returns when it has. It returns false if the
// process is closed.
func (p *Process) do(f func(*life)) bool {
	done := make(chan struct{})
	select {
	case p.asks <- func(l *life) { defer close(done); f(l) }:
		<-done
		return true
	case <-p.closedCh:
		return false
	}
}

// leaderEnd is how the leader has ended.
type leaderEnd struct {
	status syscall.WaitStatus
	usage  *protocol.Rusage
	known  bool // the system has reported the status
}

// reap waits for the leader and reaps it.
func (p *Process) reap(child *child) (end leaderEnd) {
	end.status, end.usage, end.known = child.wait(func(reap func() bool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = p.tree.Reap(reap)
		return p.reaped
	})
	end.status = child.ended(end.status)
	close(p.reapedCh)
	return end
}

// first returns a channel of a stream that is not closed, or nil if all are.
func (l *life) first(of func(*stream) chan struct{}) <-chan struct{} {
	for _, s := range l.p.streams {
		select {
		case <-of(s):
		default:
			return of(s)
		}
	}
	return nil
}

// ended is ready after a stream has ended, and nil when all have.
func (l *life) ended() <-chan struct{} {
	return l.first(func(s *stream) chan struct{} { return s.ended })
}

// drained is ready after what the leader wrote to a stream is in the log, and nil when that
// is so for all, or they are not being drained.
func (l *life) drained() <-chan struct{} {
	if l.phase != phaseDraining {
		return nil
	}
	return l.first(func(s *stream) chan struct{} { return s.drained })
}

// advance goes on to the next phases, as far as what has happened allows.
func (l *life) advance(drained, ended bool) {
	if l.phase == phaseDraining && drained {
		l.exit(ended)
	}
	switch {
	case l.phase != phaseExited:
	case l.ending.begun && !l.killed:
		if ended { // their holders have had the grace; those that let go of them may linger
			l.kill(l.p.tree.Collect())
		}
	case l.killed && (l.gone != nil || !ended):
	case l.killed, ended, l.settled:
		l.close()
	}
	if l.phase == phaseClosed && ended {
		l.finish()
	}
}

// drain asks for everything that the streams hold, after the leader has been reaped.
func (l *life) drain() {
	l.phase = phaseDraining
	l.p.Log.Drain()
	for _, s := range l.p.streams {
		s.drain()
	}
}

// exit numbers exited.
func (l *life) exit(ended bool) {
	p := l.p
	l.phase = phaseExited
	l.child.closeTerminal()
	p.Log.Drained()
	record := exitRecord(l.leader.status, l.leader.known, l.leader.usage, l.ending)
	record.OOMKilled = p.tree.OOMKilled()
	record.SandboxDenied = p.denials && denied(p.Log, record.ExitCode)
	p.endInput()
	p.Log.Exit(record)
	if p.opts.Listener != nil {
		p.opts.Listener.Exited(record)
	}
	if p.drain > 0 && !ended {
		l.exitedAt = time.Now()
		l.quiet = time.NewTimer(min(p.opts.quietTime, p.drain))
	}
}

// settle lets a process close whose streams have been quiet for quietTime, or when the drain
// timeout is over. One that is being ended leaves nothing in the background.
func (l *life) settle() {
	p := l.p
	quiet := p.opts.quietTime - p.Log.Quiet()
	for _, s := range p.streams {
		if s.open() && s.pending() {
			quiet = p.opts.quietTime // its reader is late, or waits for room
		}
	}
	more := min(quiet, p.drain-time.Since(l.exitedAt))
	if l.settled = more <= 0; l.settled {
		l.quiet = nil
		return
	}
	l.quiet.Reset(more)
}

// close numbers closed, after which the process cannot be ended any more.
func (l *life) close() {
	p := l.p
	l.phase = phaseClosed
	l.limit, l.grace, l.quiet = nil, nil, nil
	if p.stdin != nil {
		p.stdin.close()
		p.stdin.forget()
	}
	for _, s := range p.streams {
		if s.open() {
			l.held = append(l.held, s)
		} else {
			_ = s.file.Close()
		}
	}
	p.tree.Closed()
	p.Log.Close(len(l.held) > 0)
	close(p.closedCh)
}

// finish ends the background output of a closed process.
func (l *life) finish() {
	l.phase = phaseOver
	for _, s := range l.held {
		_ = s.file.Close()
	}
	if len(l.held) > 0 {
		l.p.Log.CloseBackground()
	}
	close(l.p.overCh)
}

// begin records that the process is being ended, and why if its leader still runs.
func (l *life) begin(cause protocol.EndedBy) {
	l.p.mu.Lock()
	reaped := l.p.reaped
	l.p.mu.Unlock()
	if !reaped {
		l.ending.note(cause)
	}
	l.ending.begun = true
}

// end kills the process; see Process.End.
func (l *life) end(cause protocol.EndedBy, found bool) {
	l.begin(cause)
	others := func() {}
	if !found {
		others = l.p.tree.Collect()
	}
	l.kill(others)
}

// endGracefully asks the process to end, and kills it when the grace is over. Of several
// graces the first to end counts.
func (l *life) endGracefully(cause protocol.EndedBy, grace time.Duration) {
	l.begin(cause)
	l.ending.asked = true
	l.p.ask()
	if at := time.Now().Add(grace); l.grace == nil || at.Before(l.killAt) {
		l.grace, l.killAt = time.After(grace), at
	}
}

// ask sends SIGTERM to everything that belongs to the process. What is stopped gets
// SIGCONT, too, so that it can end.
func (p *Process) ask() {
	told := false // the group has got the signals
	for _, sig := range []syscall.Signal{syscall.SIGTERM, sigCont} {
		told, _ = p.signalGroup(sig) // it may not be ours to signal; then nothing helps
	}
	if !p.asking.CompareAndSwap(false, true) {
		return
	}
	go func() { // ends after two scans of the system
		defer p.asking.Store(false)
		for _, sig := range []syscall.Signal{syscall.SIGTERM, sigCont} {
			_ = p.tree.Signal(sig, func(group, _ int) bool { return !told || group != p.pid && group != p.group })
		}
	}()
}

// kill sends SIGKILL to everything that belongs to the process. The leader's group gets it
// first and at once: otherwise a shell would see its children die and report it. others
// kills what Tree.Collect has found.
func (l *life) kill(others func()) {
	_, _ = l.p.signalGroup(syscall.SIGKILL) // gone, or not ours to kill
	others()
	if l.killed {
		return
	}
	l.killed = true
	gone := make(chan struct{})
	l.gone = gone
	go l.p.killTree(gone) // ends after treeTimeout at the latest
}

// treeTimeout bounds how long a killed tree keeps the process from closing. There are
// processes that the kernel cannot kill. It passes in steps: a stop of the whole program,
// in which nobody could kill, counts as one of them.
const (
	treeTimeout = time.Second
	treeSteps   = 20
)

// awaitTree waits until done is closed, for treeTimeout at most.
func awaitTree(done <-chan struct{}) {
	for range treeSteps {
		select {
		case <-done:
			return
		case <-time.After(treeTimeout / treeSteps):
		}
	}
}

// killTree kills the tree, whose leader's group has got SIGKILL, and closes gone when nothing is
// left that could write.
func (p *Process) killTree(gone chan<- struct{}) {
	killed := make(chan struct{})
	go func() { // ends with Kill, which is bounded
		defer close(killed)
		awaitTree(p.reapedCh)
		p.tree.Kill()
	}()
	awaitTree(killed)
	close(gone)
}
