// Package process runs one child process: it starts the child with pipes or a terminal,
// writes its stdin, reads its output into a log, signals it and records how it ended. It
// does not depend on the RPC layer.
//
// Begin with [Start]. The log of a [Process], of package output, holds its events: output,
// then exited, then closed. The descendants of the child belong to an owner of package
// ownership.
//
// A process owns the parent's ends of the child's streams. One goroutine reads each stream,
// one reaps the leader, one writes stdin while input is queued, and one runs the life
// cycle. The log bounds the output that is retained, and maxQueuedInput bounds the input
// that is queued. The child blocks at either bound.
//
// The life cycle is a state machine of three parts, which only its goroutine changes
// (lifecycle.go). The phase moves in one direction:
//
//	running ──leader reaped──▶ draining ──drained──▶ exited ──may close──▶ closed ──▶ done
//	                                          │                    │           │
//	                                     exited numbered    closed numbered  streams ended
//
// Termination may begin in any phase before closed, and also moves in one direction:
//
//	none ──graceful──▶ SIGTERM sent ──grace period over, or exited and streams ended──▶ killed ──tree gone──▶ gone
//	  └─────────────────────────────at once────────────────────────────────────────────────▲
//
// The cause is the first reason to terminate the process before its leader was reaped. A
// process that has exited may close
//
//	not terminated  when its streams have ended, have been quiet, or the drain timeout expires
//	gone            when its streams have ended: what they still hold is read, and then they
//	                are closed
//
// Process.mu guards whether the leader has been reaped, so that its pid is not signalled
// afterwards. It may be held when Ownership.mu is locked, but not when a log is.
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

	description  Description
	limits       Limits
	opts         Options
	tree         *ownership.Tree
	drainTimeout time.Duration // upper bound on the wait for quiet streams; 0: wait until they end
	sandboxed    bool          // its exit record may blame the sandbox
	stdin        *input        // nil: no stdin to write to
	streams      []*stream
	master       *os.File    // of the terminal, else nil
	sizes        sizeHistory // of the terminal

	pid       int
	group     int // of the program, which may be the child of a launcher; otherwise pid
	requests  chan func(*lifecycle)
	signaling atomic.Bool // a goroutine is sending SIGTERM to descendants outside the group

	// forwardSignal makes the launcher signal the program's group. It is nil if the
	// leader is the program.
	forwardSignal func(syscall.Signal) error

	mu     sync.Mutex
	reaped bool // the leader has been waited for; its pid may have been reused

	reapedCh chan struct{} // closed when reaped
	closedCh chan struct{} // closed after the closed event
	doneCh   chan struct{} // closed when the streams have ended as well
}

// Reaped is closed when the leader has been waited for.
func (p *Process) Reaped() <-chan struct{} { return p.reapedCh }

// Pid returns the program's process id, which is also its process group and session.
func (p *Process) Pid() int { return p.group }

// finishInput refuses further writes because the leader has exited. Descendants that hold
// the pipe still receive the writes accepted before, and then EOF. A terminal accepts input
// even when nobody reads it, so its queue is dropped.
func (p *Process) finishInput() {
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

// Closed is closed once the closed event is numbered: the leader has been reaped, and the
// streams have ended or only descendants hold them.
func (p *Process) Closed() <-chan struct{} { return p.closedCh }

// Done is closed after the process has closed and its streams, including background output,
// have ended.
func (p *Process) Done() <-chan struct{} { return p.doneCh }

// Write queues data for stdin. A writeID seen before is accepted without writing again; a
// nil writeID disables de-duplication. If too much is queued already, Write calls wait with
// a function that blocks until there is space or cancel is closed. If cancel is closed
// first, or wait is nil, Write queues nothing and returns cancelled. An error, a
// *quota.Error of Options.Input, means that nothing was queued. Write does not retain data.
func (p *Process) Write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool, err error) {
	if p.stdin == nil {
		return protocol.WriteStdinClosed, false, nil
	}
	return p.stdin.write(data, writeID, cancel, wait)
}

// ErrFinished reports that a process has closed and can no longer be signalled.
var ErrFinished = errors.New("the process has finished; nothing is left to signal")

// Signal sends a signal from the client to the program's process group. A missing group is
// not an error. After the leader has been reaped, the signal goes to the members of the
// group that are known to be descendants. Signal returns ErrFinished once the process is
// closing, even if it has left descendants running.
func (p *Process) Signal(sig syscall.Signal) error {
	if !p.do(func(l *lifecycle) { l.termination.addSignal(sig) }) {
		return ErrFinished
	}
	held, err := p.signalGroup(sig)
	if !held {
		err = p.tree.Signal(sig, func(group, _ int) bool { return group == p.group })
	}
	return err
}

// Terminate kills a process that has not closed yet, and all its descendants, with SIGKILL.
// It reports whether the process had not exited. Output written before is still delivered,
// and closed is numbered once the whole tree is gone. After closed, Terminate does nothing:
// descendants that released the streams survive.
func (p *Process) Terminate() (running bool) { return p.End(protocol.EndedByClient, false) }

// TerminateGracefully sends SIGTERM to the process and all its descendants. It kills the
// rest when the grace period is over, or when the leader has exited and its streams have
// ended. It returns at once, and is otherwise like Terminate.
func (p *Process) TerminateGracefully(grace time.Duration) (running bool) {
	p.do(func(l *lifecycle) {
		running = !p.Exited()
		l.endGracefully(protocol.EndedByClient, grace)
	})
	return running
}

// End is Terminate with another cause. If found is true, the caller has already found the
// descendants outside the process group, and kills them.
func (p *Process) End(cause protocol.EndedBy, found bool) (running bool) {
	p.do(func(l *lifecycle) {
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

// Kill ends the process. Ending its owner also ends its background descendants.
func (p *Process) Kill() { p.End(protocol.EndedBySessionExpired, false) }

// Abandon lets a killed process close although nobody acknowledges its output. Output that
// does not fit into the log is lost.
func (p *Process) Abandon() { p.Log.Abort() }

// Release frees the retained output and stops reading background output. The process must
// have closed or been killed.
func (p *Process) Release() {
	p.finishStreams()
	p.Log.Release()
	if p.opts.soleOwner {
		p.opts.Owner.Forget()
	}
}

// ErrTerminal reports that the input of a terminal cannot be closed.
var ErrTerminal = errors.New("the input of a terminal does not close; " +
	"write the byte 4 (control-D) at the start of a line instead")

// SetTap sets the tap of a process. It must be called before the first write.
func (p *Process) SetTap(tap Tap) {
	if p.stdin != nil {
		p.stdin.mu.Lock()
		defer p.stdin.mu.Unlock()
		p.stdin.tap = tap
	}
}

// CloseStdin closes the child's stdin after all earlier writes. It does nothing if stdin is
// closed or was never open, and returns ErrTerminal for a process with a terminal.
func (p *Process) CloseStdin() error {
	if p.description.TTY {
		return ErrTerminal
	}
	if p.stdin != nil {
		p.stdin.end()
	}
	return nil
}

// StdinClosed reports whether writes are refused.
func (p *Process) StdinClosed() bool { return p.stdin == nil || p.stdin.ended() }
