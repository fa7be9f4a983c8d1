// Package process runs one child: it spawns it with pipes or a terminal, writes
// its stdin, numbers and retains its output, signals it and tells how it ended.
// It knows no RPC.
//
// Start at [Start]. A process's story is told by its [Log]: output, then
// exited, then closed.
package process

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"execserver/internal/sandbox"
	"execserver/protocol"
)

// DefaultRetainedBytes is how much output a process retains unless told
// otherwise.
const DefaultRetainedBytes = 4 << 20

// Spec says what to start.
type Spec struct {
	Argv      []string          // Argv[0] is looked up; see Lookup
	Arg0      *string           // what the program sees as argv[0]; nil: Argv[0]
	Dir       string            // absolute
	DirFile   *os.File          // Dir, opened: on Linux the process begins there, wherever Dir leads by then; nil: where it leads
	Env       map[string]string // the whole environment
	TTY       bool              // a terminal instead of pipes
	PipeStdin bool              // without TTY: a pipe instead of /dev/null

	// DropOutput, without TTY, has output go to /dev/null: it is neither
	// numbered nor counted, and nobody who holds it keeps the process from
	// closing.
	DropOutput bool

	Size   protocol.TerminalSize // with TTY; zero: DefaultSize
	Limits Limits

	// Sandbox makes what confines the process. Start calls it once; nothing is
	// confined by a nil Confinement. nil: the process is not in a sandbox.
	Sandbox func() (*sandbox.Confinement, error)

	// Drain says whether closed waits for the end of the streams; "": what
	// Options.DrainTimeout says.
	Drain protocol.Drain

	// KeepDescendants lets go of what the process has left running when it
	// closes: nothing owns that any more, and it outlives the program.
	KeepDescendants bool
}

// DefaultSize is what clients expect of a terminal whose size nobody gave.
var DefaultSize = protocol.TerminalSize{Rows: 24, Cols: 80}

// Options of Start. The zero value means the defaults.
type Options struct {
	RetainedBytes int64   // default DefaultRetainedBytes
	Budget        *Budget // shared with other processes; nil: none
	Notify        func()  // called without locks after every new event; must not block
	Blocked       func()  // called without locks when output waits for an acknowledgement; must not block

	// Exited is called with how the leader has ended; it must not block. nil:
	// nobody wants to know.
	Exited func(protocol.ExitRecord)

	// Owner owns the process and what it leaves running. nil: nobody owns that,
	// and MeansProcessGroup finds what Terminate shall end.
	Owner *Owner
	// Name of the process in Background.
	Name string
	// DrainTimeout bounds how long after the leader's exit descendants that
	// write to its streams keep the process from closing; less when they are
	// quiet. 0: DefaultDrainTimeout; negative: as long as they hold the streams.
	DrainTimeout time.Duration
}

// Process is one child and what is left of it. All methods may be called
// concurrently.
type Process struct {
	// Log holds the numbered events.
	Log *Log

	about   Description
	limits  Limits
	opts    Options
	tree    *tree
	drain   time.Duration // the longest that settle waits; 0: until the streams end
	denials bool          // how it ends may be the sandbox's doing
	stdin   *input        // nil: no stdin to write to
	streams []*stream
	master  *os.File // of the terminal, else nil

	mu       sync.Mutex
	pid      int
	group    int  // of the program, which a launcher may stand before; else pid
	reaped   bool // the leader has been waited for; pid may belong to another
	closing  bool // too late to end it: closed is about to be numbered
	ending   ending
	killed   chan struct{} // closed when the killed tree is gone; nil: not killed
	timers   []*time.Timer // stopped when it closes
	grace    *time.Timer   // of timers: kills what was asked to end; nil: nothing was
	graceEnd time.Time     // when that is
	asking   atomic.Bool   // somebody asks what is outside of the group
	reapedCh chan struct{} // closed when reaped
	closedCh chan struct{} // closed after the closed event
	overCh   chan struct{} // closed when the streams have ended, too
}

// Start spawns a child. A failure is an *Error, a *LimitError, a *PanicError, or
// what spec.Sandbox or its Confinement has returned, and nothing is left behind.
// Close the process with Release when its events are not needed any more.
func Start(spec Spec, opts *Options) (_ *Process, err error) {
	if spec.Size == (protocol.TerminalSize{}) {
		spec.Size = DefaultSize
	}
	p := &Process{
		limits:   spec.Limits,
		reapedCh: make(chan struct{}), closedCh: make(chan struct{}), overCh: make(chan struct{}),
	}
	if opts != nil {
		p.opts = *opts
	}
	p.opts.complete()
	p.drain = p.opts.drain(spec.Drain)
	command, err := prepare(spec)
	if err != nil {
		return nil, err
	}
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Program: spec.Argv[0], Value: v, Stack: debug.Stack()}
		}
	}()
	p.denials = spec.Sandbox != nil
	p.about = describe(spec)
	p.tree, err = p.opts.Owner.plant(p, spec)
	if err != nil {
		return nil, err
	}
	child, err := p.spawn(command)
	if err != nil {
		return nil, err
	}
	p.run(child)
	return p, nil
}

// spawn makes the child, or leaves nothing behind.
func (p *Process) spawn(c command) (made *child, err error) {
	defer func() {
		if made == nil { // also after a panic
			p.tree.uproot()
		}
	}()
	return spawn(c, p.tree)
}

// PanicError says that starting a process panicked. Nothing is left of the
// process.
type PanicError struct {
	Program string
	Value   any    // of the panic
	Stack   []byte // where it happened
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("cannot start %q because of a fault in the server: %v", e.Program, e.Value)
}

func (o *Options) complete() {
	if o.RetainedBytes <= 0 {
		o.RetainedBytes = DefaultRetainedBytes
	}
	if o.Budget == nil {
		o.Budget = NewBudget(1 << 62)
	}
	if o.Notify == nil {
		o.Notify = func() {}
	}
	if o.Blocked == nil {
		o.Blocked = func() {}
	}
	if o.Owner == nil {
		o.Owner = DefaultOwnership().newOwner()
	}
}

// run starts what accompanies a child that has been spawned. After a panic it
// ends the child.
func (p *Process) run(child *child) {
	p.Log = newLog(p.opts.RetainedBytes, p.opts.Budget, p.opts.Notify, p.opts.Blocked)
	p.about.Pid = child.group
	p.mu.Lock()
	p.pid, p.group, p.master = child.pid, child.group, child.master
	p.mu.Unlock()
	running := false
	defer func() {
		go p.wait(child)
		if !running {
			for _, out := range child.outputs[len(p.streams):] {
				_ = out.file.Close()
			}
			p.Kill()
			p.Abandon()
			go func() { // ends when the process has
				<-p.Closed()
				p.Release()
			}()
		}
	}()
	if child.stdin != nil {
		p.stdin = newInput(child.stdin, child.master == nil)
	}
	var limit *outputLimit
	if most := p.limits.MaxOutputBytes; most > 0 {
		limit = &outputLimit{over: func() { p.end(protocol.EndedByOutputLimit) }}
		limit.left.Store(most)
	}
	for _, out := range child.outputs {
		s := newStream(p.Log, out.name, out.file, limit)
		p.streams = append(p.streams, s)
		go s.run()
	}
	if p.tree.started(p.pid, p.group) {
		p.end(protocol.EndedBySessionExpired) // the owner has ended meanwhile
	}
	if timeout := p.limits.Timeout; timeout > 0 {
		p.after(timeout, func() { p.endGracefully(protocol.EndedByTimeout, TimeoutGrace) })
	}
	running = true
}

// after runs f after some time unless the process closes before.
func (p *Process) after(d time.Duration, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing {
		p.timers = append(p.timers, time.AfterFunc(d, f))
	}
}

// Pid is the program's process id, which is also its process group and session.
func (p *Process) Pid() int { return p.group }

// wait tells the end of the story: the leader is reaped, what its streams hold
// is read, exited is numbered, the streams end or descendants hold them in silence,
// closed is numbered. What descendants write from then on is background output.
func (p *Process) wait(child *child) {
	status, usage, known := child.wait(func(reap func() bool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = p.tree.reap(reap)
		return p.reaped
	})
	status = child.ended(status)
	close(p.reapedCh)
	p.Log.drain()
	for _, s := range p.streams {
		s.drain()
	}
	for _, s := range p.streams {
		<-s.drained
	}
	p.Log.drained()
	p.mu.Lock()
	ending := p.ending
	p.mu.Unlock()
	record := exitRecord(status, known, usage, ending)
	record.OOMKilled = p.tree.oomKilled()
	record.SandboxDenied = p.denials && p.Log.denied(record.ExitCode)
	p.Log.exited(record)
	if p.opts.Exited != nil {
		p.opts.Exited(record)
	}
	if p.stdin != nil && p.master != nil {
		p.stdin.close() // a terminal takes input even when nobody is there
	}
	p.close()
}

// Exited reports whether the leader has ended and its exited event is numbered.
func (p *Process) Exited() bool {
	p.Log.mu.Lock()
	defer p.Log.mu.Unlock()
	return p.Log.exitSeq > 0
}

// Closed is closed once the closed event is numbered: the leader is reaped, and
// the streams have ended or only descendants hold them.
func (p *Process) Closed() <-chan struct{} { return p.closedCh }

// CanWrite reports whether Write of n bytes would return at once.
func (p *Process) CanWrite(n int) bool {
	return p.stdin == nil || p.stdin.hasRoom(n)
}

// Write queues data for stdin and says what became of it. A writeID seen before
// is accepted without writing; nil asks for no de-duplication. When too much is
// queued already, Write calls wait with a function that blocks until there is
// room or cancel is closed; cancelled says that the latter happened, and then
// nothing was queued. Write keeps no reference to data.
func (p *Process) Write(data []byte, writeID *string, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool) {
	if p.stdin == nil {
		return protocol.WriteStdinClosed, false
	}
	return p.stdin.write(data, writeID, cancel, wait)
}

// Signal sends a signal of the client to the leader's process group. A group
// that is gone is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	p.ending.noteSignal(sig)
	p.mu.Unlock()
	return p.signalGroup(sig)
}

// Terminate ends a process that is not closed yet, and everything that it has
// started: SIGKILL, now. It reports whether the process had not exited. Output
// that was written before is still delivered, and closed is numbered when all is
// gone. After closed, Terminate does nothing: what let go of its streams may
// live on.
func (p *Process) Terminate() (running bool) { return p.end(protocol.EndedByClient) }

// TerminateGracefully asks everything that a process has started to end, by
// SIGTERM, and kills what has not when the time is up, or when the leader has
// ended and nothing holds its streams any more. It returns at once, and is
// otherwise like Terminate.
func (p *Process) TerminateGracefully(grace time.Duration) (running bool) {
	return p.endGracefully(protocol.EndedByClient, grace)
}

// end kills the tree of a process that is not closed yet.
func (p *Process) end(cause protocol.EndedBy) (running bool) {
	if !p.noteEnding(cause, false) {
		return false
	}
	running = !p.Exited()
	p.kill(p.tree.collect())
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

// ask sends SIGTERM to everything that belongs to the process, and lets what is
// stopped have it.
func (p *Process) ask() {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, sigCont} {
		_ = p.signalGroup(sig) // it may not be ours to signal; then nothing helps
	}
	if !p.asking.CompareAndSwap(false, true) {
		return
	}
	go func() { // ends when it has looked at every process twice
		defer p.asking.Store(false)
		for _, sig := range []syscall.Signal{syscall.SIGTERM, sigCont} {
			p.tree.signalOthers(sig)
		}
	}()
}

// killAfter kills the tree when the grace is over; of several, the first to end
// counts.
func (p *Process) killAfter(grace time.Duration, cause protocol.EndedBy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := time.Now().Add(grace)
	switch {
	case p.closing:
	case p.grace == nil:
		p.grace, p.graceEnd = time.AfterFunc(grace, func() { p.end(cause) }), end
		p.timers = append(p.timers, p.grace)
	case end.Before(p.graceEnd):
		p.grace.Reset(grace)
		p.graceEnd = end
	}
}

// noteEnding remembers who ends the process; false means that it is too late.
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

// kill sends SIGKILL to everything that belongs to the process. The leader's
// group gets it first and at once, lest a shell see its children die and tell
// about it; others kills what tree.collect has found.
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
	_ = p.signalGroup(syscall.SIGKILL) // gone, or not ours to kill
	others()
	if first {
		go p.finish(killed)
	}
}

// treeTimeout bounds how long a killed tree keeps the process from closing:
// there are processes that the kernel cannot kill.
const treeTimeout = time.Second

// finish sees to it that a killed tree is gone, so that nothing is written any
// more by what was killed, and then ends the streams that others still hold.
func (p *Process) finish(killed chan<- struct{}) {
	gone := make(chan struct{})
	go func() { // ends after killTimeout at the latest
		defer close(gone)
		select {
		case <-p.reapedCh:
		case <-time.After(treeTimeout):
		}
		p.tree.kill()
	}()
	select {
	case <-gone:
	case <-time.After(treeTimeout):
	}
	close(killed)
	p.finishStreams()
}

// finishStreams ends the streams, whoever holds them, once what they hold now
// has been read.
func (p *Process) finishStreams() {
	for _, s := range p.streams {
		s.finish()
	}
}

// Kill ends the process; its owner's End ends what it has left as well.
func (p *Process) Kill() { p.end(protocol.EndedBySessionExpired) }

// Abandon makes a killed process close although nobody takes its output: what
// the retention cannot hold is lost.
func (p *Process) Abandon() { p.Log.abort() }

// Release gives back the retained output, and stops reading what descendants still
// write. The process must be closed or be killed by the caller before.
func (p *Process) Release() {
	p.finishStreams()
	p.Log.release()
	if background := p.Log.Background(); background != nil {
		background.release()
	}
	if p.opts.Owner.index == 0 {
		p.opts.Owner.forget()
	}
}
