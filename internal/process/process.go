// Package process runs one child: it starts the child with pipes or a terminal, writes its
// stdin, reads its output into a log, signals it and records how it ended. It knows no
// RPC.
//
// Start at [Start]. The log of a [Process], of package output, has its events: output,
// then exited, then closed. What the child starts itself belongs to an owner of package
// ownership.
//
// A process owns our ends of its streams. A goroutine reads each stream, one waits for the
// leader, and one writes stdin while input is queued. The log bounds the output that is
// retained, maxQueuedInput the input that is queued. The child blocks at either bound.
//
// Process.mu guards how a process ends. It may be held when Ownership.mu is locked, never
// when a log is.
package process

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/protocol"
)

// Process is one child, or what is left of it. All methods may be called concurrently.
type Process struct {
	// Log holds the numbered events.
	Log *output.Log

	about   Description
	limits  Limits
	opts    Options
	tree    *ownership.Tree
	drain   time.Duration // the longest that settle waits; 0: until the streams end
	denials bool          // how it ends may be the sandbox's doing
	stdin   *input        // nil: no stdin to write to
	streams []*stream
	master  *os.File // of the terminal, else nil
	sizes   sizes    // of the terminal

	mu    sync.Mutex
	pid   int
	group int // of the program, which a launcher may stand before; else pid
	// passSignal has the launcher signal the program's group; nil: the leader is the program
	passSignal func(syscall.Signal) error
	reaped     bool // the leader has been waited for; pid may belong to another
	closing    bool // too late to end it: closed is about to be numbered
	ending     ending
	killed     chan struct{} // closed when the killed tree is gone; nil: not killed
	timers     []*time.Timer // stopped when it closes
	grace      *time.Timer   // of timers: kills the process after SIGTERM; nil if none was sent
	graceEnd   time.Time     // when grace fires
	asking     atomic.Bool   // a goroutine sends SIGTERM to descendants outside of the group
	reapedCh   chan struct{} // closed when reaped
	closedCh   chan struct{} // closed after the closed event
	overCh     chan struct{} // closed when the streams have ended, too
}

// after calls f after d unless the process closes before.
func (p *Process) after(d time.Duration, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing {
		p.timers = append(p.timers, time.AfterFunc(d, f))
	}
}

// Reaped is closed when the leader has been waited for.
func (p *Process) Reaped() <-chan struct{} { return p.reapedCh }

// Pid returns the program's process id, which is also its process group and session.
func (p *Process) Pid() int { return p.group }

// wait sees the process to its end. It reaps the leader, waits until what the streams
// hold is read, and numbers exited. When the streams have ended, or descendants hold them
// quietly, it numbers closed. What descendants write from then on is background output.
func (p *Process) wait(child *child) {
	status, usage, known := child.wait(func(reap func() bool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = p.tree.Reap(reap)
		return p.reaped
	})
	status = child.ended(status)
	close(p.reapedCh)
	p.Log.Drain()
	for _, s := range p.streams {
		s.drain()
	}
	for _, s := range p.streams {
		<-s.drained
	}
	child.closeTerminal()
	p.Log.Drained()
	p.mu.Lock()
	ending := p.ending
	p.mu.Unlock()
	record := exitRecord(status, known, usage, ending)
	record.OOMKilled = p.tree.OOMKilled()
	record.SandboxDenied = p.denials && denied(p.Log, record.ExitCode)
	p.endInput()
	p.Log.Exit(record)
	if p.opts.Listener != nil {
		p.opts.Listener.Exited(record)
	}
	p.close()
}

// endInput refuses writes from now on, because the leader has exited. Descendants that hold
// the pipe still get the writes that were accepted before, and then its end. Nobody gets
// those to a terminal, which accepts input even when nobody reads it.
func (p *Process) endInput() {
	switch {
	case p.stdin == nil:
	case p.master != nil:
		p.stdin.close()
	default:
		p.stdin.end()
	}
}

// Exited reports whether the leader has ended and its exited event is numbered.
func (p *Process) Exited() bool { return p.Log.HasExited() }

// Closed is closed once the closed event is numbered: the leader is reaped, and
// the streams have ended or only descendants hold them.
func (p *Process) Closed() <-chan struct{} { return p.closedCh }

// Over is closed after the process has closed and its streams have ended, in the
// background as well.
func (p *Process) Over() <-chan struct{} { return p.overCh }

// Write queues data for stdin and returns what became of it. It accepts a writeID that it
// has seen before without writing; nil asks for no de-duplication. If too much is queued
// already, Write calls wait with a function that blocks until there is room or cancel is
// closed. In the latter case, and with a nil wait at once, it returns cancelled and queues
// nothing. Write keeps no reference to data.
func (p *Process) Write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool) {
	if p.stdin == nil {
		return protocol.WriteStdinClosed, false
	}
	return p.stdin.write(data, writeID, cancel, wait)
}

// ErrFinished says that a process has closed, so that nothing of it is left to signal.
var ErrFinished = errors.New("the process has finished, and has nothing left to signal")

// Signal sends a signal of the client to the program's process group. It is not an error if
// the group is gone. After the leader has been reaped, the signal goes to the members of the
// group that are known to be descendants. Signal returns ErrFinished if the process is
// closing or closed, even if it has left something running.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return ErrFinished
	}
	p.ending.noteSignal(sig)
	p.mu.Unlock()
	held, err := p.signalGroup(sig)
	if !held {
		err = p.tree.Signal(sig, func(group, _ int) bool { return group == p.group })
	}
	return err
}

// Terminate kills a process that is not closed yet, and everything that it has started,
// with SIGKILL. It reports whether the process had not exited. Output that was written
// before is still delivered, and closed is numbered when everything is gone. After
// closed, Terminate does nothing: what has let go of the streams may live on.
func (p *Process) Terminate() (running bool) { return p.End(protocol.EndedByClient, false) }

// TerminateGracefully sends SIGTERM to everything that a process has started. It kills
// what is left when the grace is over, or when the leader has ended and nothing holds its
// streams any more. It returns at once, and is otherwise like Terminate.
func (p *Process) TerminateGracefully(grace time.Duration) (running bool) {
	return p.endGracefully(protocol.EndedByClient, grace)
}

// End is Terminate with another cause. found says that the caller has found what has left
// the process's group and kills it itself.
func (p *Process) End(cause protocol.EndedBy, found bool) (running bool) {
	if !p.noteEnding(cause, false) {
		return false
	}
	running = !p.Exited()
	others := func() {}
	if !found {
		others = p.tree.Collect()
	}
	p.kill(others)
	return running
}

func (p *Process) endGracefully(cause protocol.EndedBy, grace time.Duration) (running bool) {
	if !p.noteEnding(cause, true) {
		return false
	}
	running = !p.Exited()
	p.ask()
	p.killAfter(grace, cause)
	return running
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

// killAfter kills the tree when the grace is over. Of several graces the first to end
// counts.
func (p *Process) killAfter(grace time.Duration, cause protocol.EndedBy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := time.Now().Add(grace)
	switch {
	case p.closing:
	case p.grace == nil:
		p.grace, p.graceEnd = time.AfterFunc(grace, func() { p.End(cause, false) }), end
		p.timers = append(p.timers, p.grace)
	case end.Before(p.graceEnd):
		p.grace.Reset(grace)
		p.graceEnd = end
	}
}

// noteEnding records the cause. It returns false if it is too late to end the process.
func (p *Process) noteEnding(cause protocol.EndedBy, asked bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	if !p.reaped {
		p.ending.note(cause)
	}
	p.ending.begun = true
	p.ending.asked = p.ending.asked || asked
	return true
}

// kill sends SIGKILL to everything that belongs to the process. The leader's group gets it
// first and at once: otherwise a shell would see its children die and report it. others
// kills what Tree.Collect has found.
func (p *Process) kill(others func()) {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return
	}
	first := p.killed == nil
	if first {
		p.killed = make(chan struct{}) // from now on it does not close before
	}
	killed := p.killed
	p.mu.Unlock()
	_, _ = p.signalGroup(syscall.SIGKILL) // gone, or not ours to kill; others and finish find what is left
	others()
	if first {
		go p.finish(killed) // ends after treeTimeout at the latest
	}
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

// finish waits until a killed tree is gone and writes nothing any more. Then it ends the
// streams that others still hold.
func (p *Process) finish(killed chan<- struct{}) {
	gone := make(chan struct{})
	go func() { // ends with Kill, which is bounded
		defer close(gone)
		awaitTree(p.reapedCh)
		p.tree.Kill()
	}()
	awaitTree(gone)
	close(killed)
	p.finishStreams()
}

// finishStreams ends the streams once their present content has been read, even if other
// processes hold them open.
func (p *Process) finishStreams() {
	for _, s := range p.streams {
		s.finish()
	}
}

// Kill ends the process. The End of its owner also ends what it has left running.
func (p *Process) Kill() { p.End(protocol.EndedBySessionExpired, false) }

// Abandon lets a killed process close although nobody acknowledges its output. Output
// that the log has no room for is lost.
func (p *Process) Abandon() { p.Log.Abort() }

// Release frees the retained output, and stops reading what descendants still write. The
// caller must have waited until the process is closed, or have killed it.
func (p *Process) Release() {
	p.finishStreams()
	p.Log.Release()
	if p.opts.soleOwner {
		p.opts.Owner.Forget()
	}
}
