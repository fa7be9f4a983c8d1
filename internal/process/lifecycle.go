package process

import (
	"bytes"
	"fmt"
	"syscall"
	"time"

	"execserver/internal/output"
	"execserver/protocol"
)

const (
	// DefaultDrainTimeout is how long the closed event may be delayed after the exit while
	// descendants keep writing to the streams.
	DefaultDrainTimeout = 2 * time.Second

	// quietTime is how long the streams must be quiet before an exited process closes
	// although descendants hold them.
	quietTime = 250 * time.Millisecond
)

// A phase of the life cycle; see the package comment.
type phase int

const (
	phaseRunning phase = iota
	phaseDraining
	phaseExited
	phaseClosed
	phaseDone
)

// lifecycle is the state of a process that only the goroutine of runLifecycle uses.
type lifecycle struct {
	p     *Process
	child *child

	phase       phase
	leader      leaderExit      // from phaseDraining on
	termination termination     // how the process is being terminated, if it is
	killed      bool            // SIGKILL was sent to the tree
	gone        <-chan struct{} // closed when the killed tree is gone; nil: not killed, or already gone

	limit    <-chan time.Time // fires at the process's timeout
	grace    <-chan time.Time // fires when a process that got SIGTERM must be killed
	graceEnd time.Time        // when grace fires

	quiet       *time.Timer // fires when the streams may have been quiet for long enough; nil: not needed
	exitedAt    time.Time
	quietEnough bool // the process may close before its streams end

	heldStreams []*stream // held by descendants at closed
}

// runLifecycle runs the life cycle of a process and returns in phaseDone. It alone decides
// when the process exits, closes and is killed.
func (p *Process) runLifecycle(child *child) {
	l := &lifecycle{p: p, child: child}
	if timeout := p.limits.Timeout; timeout > 0 {
		l.limit = time.After(timeout)
	}
	end := make(chan leaderExit, 1)
	go func() { end <- p.reap(child) }() // ends when the leader is reaped
	for {
		// advance and the select must see the same state, so both use these
		// channels.
		drained, ended := l.drained(), l.ended()
		if l.advance(drained == nil, ended == nil); l.phase == phaseDone {
			return
		}
		requests, quiet := p.requests, (<-chan time.Time)(nil)
		if l.phase >= phaseClosed {
			requests = nil // no more requests; see do
		}
		if l.quiet != nil {
			quiet = l.quiet.C
		}
		select {
		case l.leader = <-end:
			l.drain()
		case <-drained:
		case <-ended:
		case f := <-requests:
			f(l)
		case <-l.limit:
			l.endGracefully(protocol.EndedByTimeout, TimeoutGrace)
		case <-l.grace:
			l.kill(p.tree.Collect())
		case <-quiet:
			l.checkQuiet()
		case <-l.gone:
			l.gone = nil
			p.finishStreams() // other processes may still hold them
		}
	}
}

// do calls f on the goroutine of runLifecycle and waits for it. It returns false if the
// process has closed.
func (p *Process) do(f func(*lifecycle)) bool {
	done := make(chan struct{})
	select {
	case p.requests <- func(l *lifecycle) { defer close(done); f(l) }:
		<-done
		return true
	case <-p.closedCh:
		return false
	}
}

// leaderExit is how the leader exited.
type leaderExit struct {
	status syscall.WaitStatus
	usage  *protocol.Rusage
	known  bool // the system reported the status
}

// reap waits for the leader and reaps it.
func (p *Process) reap(child *child) (end leaderExit) {
	end.status, end.usage, end.known = child.wait(func(reap func() bool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = p.tree.Reap(reap)
		return p.reaped
	})
	end.status = child.programStatus(end.status)
	close(p.reapedCh)
	return end
}

// firstOpen returns the first of the streams' channels that is not closed, or nil if all
// are closed.
func (l *lifecycle) firstOpen(ch func(*stream) chan struct{}) <-chan struct{} {
	for _, s := range l.p.streams {
		select {
		case <-ch(s):
		default:
			return ch(s)
		}
	}
	return nil
}

// ended becomes readable when a stream has ended; it is nil when all have.
func (l *lifecycle) ended() <-chan struct{} {
	return l.firstOpen(func(s *stream) chan struct{} { return s.ended })
}

// drained becomes readable when a stream has been drained; it is nil when all have, and
// outside phaseDraining.
func (l *lifecycle) drained() <-chan struct{} {
	if l.phase != phaseDraining {
		return nil
	}
	return l.firstOpen(func(s *stream) chan struct{} { return s.drained })
}

// advance moves to the next phases, as far as the state allows.
func (l *lifecycle) advance(drained, ended bool) {
	if l.phase == phaseDraining && drained {
		l.exit(ended)
	}
	switch {
	case l.phase != phaseExited:
	case l.termination.begun && !l.killed:
		if ended { // a graceful termination is over when the streams have ended
			l.kill(l.p.tree.Collect())
		}
	case l.killed && (l.gone != nil || !ended):
	case l.killed, ended, l.quietEnough:
		l.close()
	}
	if l.phase == phaseClosed && ended {
		l.finish()
	}
}

// drain reads everything that the streams hold, after the leader has been reaped.
func (l *lifecycle) drain() {
	l.phase = phaseDraining
	l.p.Log.Drain()
	for _, s := range l.p.streams {
		s.drain()
	}
}

// exit numbers the exited event.
func (l *lifecycle) exit(ended bool) {
	p := l.p
	l.phase = phaseExited
	l.child.closeTerminal()
	p.Log.Drained()
	record := exitRecord(l.leader.status, l.leader.known, l.leader.usage, l.termination)
	record.OOMKilled = p.tree.OOMKilled()
	record.SandboxDenied = p.sandboxed && looksDenied(p.Log, record.ExitCode)
	p.finishInput()
	p.Log.Exit(record)
	if p.opts.Listener != nil {
		p.opts.Listener.Exited(record)
	}
	if p.drainTimeout > 0 && !ended {
		l.exitedAt = time.Now()
		l.quiet = time.NewTimer(min(p.opts.quietTime, p.drainTimeout))
	}
}

// checkQuiet lets a process close if its streams have been quiet for quietTime or the drain
// timeout has expired.
func (l *lifecycle) checkQuiet() {
	p := l.p
	quiet := p.opts.quietTime - p.Log.QuietFor()
	for _, s := range p.streams {
		if s.open() && s.pending() {
			quiet = p.opts.quietTime // its reader is late, or waits for space
		}
	}
	more := min(quiet, p.drainTimeout-time.Since(l.exitedAt))
	if l.quietEnough = more <= 0; l.quietEnough {
		l.quiet = nil
		return
	}
	l.quiet.Reset(more)
}

// close numbers the closed event, after which the process cannot be terminated any more.
func (l *lifecycle) close() {
	p := l.p
	l.phase = phaseClosed
	l.limit, l.grace, l.quiet = nil, nil, nil
	if p.stdin != nil {
		p.stdin.close()
		p.stdin.trimWriteIDs()
	}
	for _, s := range p.streams {
		if s.open() {
			l.heldStreams = append(l.heldStreams, s)
		} else {
			_ = s.file.Close()
		}
	}
	p.tree.Closed()
	p.Log.Close(len(l.heldStreams) > 0)
	close(p.closedCh)
}

// finish closes the background log of a closed process.
func (l *lifecycle) finish() {
	l.phase = phaseDone
	for _, s := range l.heldStreams {
		_ = s.file.Close()
	}
	if len(l.heldStreams) > 0 {
		l.p.Log.CloseBackground()
	}
	close(l.p.doneCh)
}

// begin records that the process is being terminated, and the cause if its leader is
// running.
func (l *lifecycle) begin(cause protocol.EndedBy) {
	l.p.mu.Lock()
	reaped := l.p.reaped
	l.p.mu.Unlock()
	if !reaped {
		l.termination.setCause(cause)
	}
	l.termination.begun = true
}

// end kills the process; see Process.End.
func (l *lifecycle) end(cause protocol.EndedBy, found bool) {
	l.begin(cause)
	others := func() {}
	if !found {
		others = l.p.tree.Collect()
	}
	l.kill(others)
}

// endGracefully sends SIGTERM, and SIGKILL after the grace period. If it is called again,
// the earliest deadline counts.
func (l *lifecycle) endGracefully(cause protocol.EndedBy, grace time.Duration) {
	l.begin(cause)
	l.termination.graceful = true
	l.p.sendTerm()
	if at := time.Now().Add(grace); l.grace == nil || at.Before(l.graceEnd) {
		l.grace, l.graceEnd = time.After(grace), at
	}
}

// sendTerm sends SIGTERM to the process and its descendants, and SIGCONT so that stopped
// ones can exit.
func (p *Process) sendTerm() {
	groupSignaled := false // the group has received the signals
	for _, sig := range []syscall.Signal{syscall.SIGTERM, sigCont} {
		groupSignaled, _ = p.signalGroup(sig) // an error means no permission, which cannot be helped
	}
	if !p.signaling.CompareAndSwap(false, true) {
		return
	}
	go func() { // ends after two scans of the system
		defer p.signaling.Store(false)
		for _, sig := range []syscall.Signal{syscall.SIGTERM, sigCont} {
			_ = p.tree.Signal(sig, func(group, _ int) bool { return !groupSignaled || group != p.pid && group != p.group })
		}
	}()
}

// kill sends SIGKILL to the process and its descendants. The leader's group gets it first
// and at once: otherwise a shell would see its children die and report it. others kills
// what Tree.Collect has found.
func (l *lifecycle) kill(others func()) {
	_, _ = l.p.signalGroup(syscall.SIGKILL) // it is gone, or there is no permission
	others()
	if l.killed {
		return
	}
	l.killed = true
	gone := make(chan struct{})
	l.gone = gone
	go l.p.killTree(gone) // ends after treeTimeout at the latest
}

// treeTimeout bounds how long a killed tree keeps the process from closing, because the
// kernel cannot kill every process. It is counted in steps so that a pause of this whole
// program, during which nothing is killed, counts as one step.
const (
	treeTimeout = time.Second
	treeSteps   = 20
)

// waitTree waits until done is closed, for treeTimeout at most.
func waitTree(done <-chan struct{}) {
	for range treeSteps {
		select {
		case <-done:
			return
		case <-time.After(treeTimeout / treeSteps):
		}
	}
}

// killTree kills the tree after its leader's group has been killed, and closes gone when
// nothing is left that could write.
func (p *Process) killTree(gone chan<- struct{}) {
	killed := make(chan struct{})
	go func() { // ends with Kill, which has a timeout
		defer close(killed)
		waitTree(p.reapedCh)
		p.tree.Kill()
	}()
	waitTree(killed)
	close(gone)
}

// termination records how a process was terminated, for its exit record.
type termination struct {
	cause    protocol.EndedBy // the first; "" for none
	begun    bool             // the process or its descendants are being terminated
	graceful bool             // SIGTERM was sent, so any exit may be the response to it
	signaled uint64           // bit set of the signals sent by the client
}

// setCause records the cause, unless there is one already.
func (e *termination) setCause(cause protocol.EndedBy) {
	if e.cause == "" {
		e.cause = cause
	}
}

// addSignal records a signal sent by the client.
func (e *termination) addSignal(sig syscall.Signal) {
	if sig > 0 && sig < 64 {
		e.signaled |= 1 << sig
	}
}

// endedBy returns the cause of an exit with the status. If a process was killed, but its status
// is an exit code, it had ended before the signal arrived.
func (e *termination) endedBy(status syscall.WaitStatus) protocol.EndedBy {
	sig := syscall.Signal(0)
	if status.Signaled() {
		sig = status.Signal()
	}
	switch {
	case e.cause != "" && (sig == syscall.SIGKILL || e.graceful):
		return e.cause
	case sig > 0 && sig < 64 && e.signaled&(1<<sig) != 0:
		return protocol.EndedByClient
	}
	return protocol.EndedBySelf
}

// exitRecord returns the record of a reaped leader. known is false if the system did not
// report its status.
func exitRecord(status syscall.WaitStatus, known bool, usage *protocol.Rusage, e termination) protocol.ExitRecord {
	if !known {
		return protocol.ExitRecord{ExitCode: -1}
	}
	r := protocol.ExitRecord{ExitCode: status.ExitStatus(), EndedBy: e.endedBy(status), Rusage: usage}
	if status.Signaled() {
		// The exit code that shells report and clients expect.
		r.ExitCode = 128 + int(status.Signal())
		r.Signal = signalName(status.Signal())
		r.CoreDumped = status.CoreDump()
	}
	return r
}

// unnamedSignal names a signal by its number, such as a real-time signal.
func unnamedSignal(sig syscall.Signal) string { return fmt.Sprintf("SIG%d", int(sig)) }

// denialSearchBytes is how much of the retained output is searched for a denial.
const denialSearchBytes = 1 << 20

// denialMessages are printed by programs that a sandbox denies something.
var denialMessages = [][]byte{
	[]byte("operation not permitted"),
	[]byte("permission denied"),
	[]byte("read-only file system"),
	[]byte("seccomp"),
	[]byte("sandbox"),
	[]byte("landlock"),
	[]byte("failed to write file"),
}

// exitSIGSYS is the exit code of a program killed by a seccomp filter.
const exitSIGSYS = 128 + 31

// looksDenied guesses whether a program failed because of its sandbox. Released clients
// then ask whether it may run without one.
func looksDenied(l *output.Log, code int) bool {
	if code == 0 {
		return false
	}
	text := bytes.ToLower(l.RecentOutput(denialSearchBytes))
	for _, message := range denialMessages {
		if bytes.Contains(text, message) {
			return true
		}
	}
	return code == exitSIGSYS
}
