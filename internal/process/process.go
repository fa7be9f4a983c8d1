// Package process runs one child: it starts the child with pipes or a terminal, writes its
// stdin, reads its output into a log, signals it and records how it ended. It knows no
// RPC.
//
// Start at [Start]. The log of a [Process], of package output, has its events: output,
// then exited, then closed. What the child starts itself belongs to an owner of package
// ownership.
//
// A process owns our ends of its streams. A goroutine reads each stream, one reaps the leader,
// one writes stdin while input is queued, and one owns the life of the process. The log bounds
// the output that is retained, maxQueuedInput the input that is queued. The child blocks at
// either bound.
//
// The life of a process is a state machine of three parts, which its goroutine alone writes
// (life.go). Its phase goes one way:
//
//	running ──leader reaped──▶ draining ──drained──▶ exited ──may close──▶ closed ──▶ over
//	                                          │                    │           │
//	                                     exited numbered    closed numbered  streams ended
//
// What is done to end it may begin in any phase before closed, and goes one way, too:
//
//	left alone ──asked, with a grace──▶ asked ──grace over, or exited and streams ended──▶ killed ──tree gone──▶ gone
//	     └──────────────────────────────killed at once───────────────────────────────────────▲
//
// The cause is the first reason to end it before the leader was reaped. A process that has
// exited may close
//
//	left alone   when its streams have ended, or have been quiet, or after the drain timeout
//	gone         when its streams have ended, which are read to what they hold and given up
//	             once the tree is gone
//
// Process.mu guards whether the leader has been reaped, so that nobody signals its number
// afterwards. It may be held when Ownership.mu is locked, never when a log is.
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

	pid    int
	group  int // of the program, which a launcher may stand before; else pid
	asks   chan func(*life)
	asking atomic.Bool // a goroutine sends SIGTERM to descendants outside of the group

	// passSignal has the launcher signal the program's group; nil: the leader is the program
	passSignal func(syscall.Signal) error

	mu     sync.Mutex
	reaped bool // the leader has been waited for; pid may belong to another

	reapedCh chan struct{} // closed when reaped
	closedCh chan struct{} // closed after the closed event
	overCh   chan struct{} // closed when the streams have ended, too
}

// Reaped is closed when the leader has been waited for.
func (p *Process) Reaped() <-chan struct{} { return p.reapedCh }

// Pid returns the program's process id, which is also its process group and session.
func (p *Process) Pid() int { return p.group }

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
// nothing; nor does it with an error, which is a *quota.Error of Options.Input. Write keeps no
// reference to data.
func (p *Process) Write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool, err error) {
	if p.stdin == nil {
		return protocol.WriteStdinClosed, false, nil
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
	if !p.do(func(l *life) { l.ending.noteSignal(sig) }) {
		return ErrFinished
	}
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
	p.do(func(l *life) {
		running = !p.Exited()
		l.endGracefully(protocol.EndedByClient, grace)
	})
	return running
}

// End is Terminate with another cause. found says that the caller has found what has left
// the process's group and kills it itself.
func (p *Process) End(cause protocol.EndedBy, found bool) (running bool) {
	p.do(func(l *life) {
		running = !p.Exited()
		l.end(cause, found)
	})
	return running
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
