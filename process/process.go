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
	"sync"
	"syscall"
	"time"

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
	Env       map[string]string // the whole environment
	TTY       bool              // a terminal instead of pipes
	PipeStdin bool              // without TTY: a pipe instead of /dev/null
}

// Options of Start. The zero value means the defaults.
type Options struct {
	RetainedBytes int64   // default DefaultRetainedBytes
	Budget        *Budget // shared with other processes; nil: none
	Notify        func()  // called without locks after every new event; must not block
	Blocked       func()  // called without locks when output waits for an acknowledgement; must not block
}

// Process is one child and what is left of it. All methods may be called
// concurrently.
type Process struct {
	// Log holds the numbered events.
	Log *Log

	spec    Spec
	stdin   *input // nil: no stdin to write to
	streams []*stream
	master  *os.File // of the terminal, else nil

	mu     sync.Mutex
	pid    int
	reaped bool // the leader has been waited for; pid may belong to another

	reapedCh chan struct{} // closed when reaped
	closedCh chan struct{} // closed after the closed event
	finish   sync.Once
}

// Start spawns a child. A failure is an *Error, and nothing is left behind. Close
// the process with Release when its events are not needed any more.
func Start(spec Spec, opts *Options) (*Process, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
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
	command, err := prepare(spec)
	if err != nil {
		return nil, err
	}
	child, err := spawn(command)
	if err != nil {
		return nil, err
	}
	p := &Process{
		Log:      newLog(o.RetainedBytes, o.Budget, o.Notify, o.Blocked),
		spec:     spec,
		pid:      child.pid,
		master:   child.master,
		reapedCh: make(chan struct{}),
		closedCh: make(chan struct{}),
	}
	if child.stdin != nil {
		p.stdin = newInput(child.stdin, child.master == nil)
	}
	for _, out := range child.outputs {
		p.streams = append(p.streams, newStream(p.Log, out.name, out.file))
	}
	for _, s := range p.streams {
		go s.run()
	}
	go p.wait(child)
	return p, nil
}

// Pid is the leader's process id, which is also its process group and session.
func (p *Process) Pid() int { return p.pid }

// wait tells the end of the story: the leader is reaped, what its streams hold
// is read, exited is numbered, the streams end, closed is numbered.
func (p *Process) wait(child *child) {
	status := child.wait(func(reap func() bool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = reap()
		return p.reaped
	})
	close(p.reapedCh)
	for _, s := range p.streams {
		s.drain()
	}
	for _, s := range p.streams {
		<-s.drained
	}
	p.Log.exited(exitCode(status))
	if p.stdin != nil && p.master != nil {
		p.stdin.close() // a terminal takes input even when nobody is there
	}
	for _, s := range p.streams {
		<-s.ended
	}
	if p.stdin != nil {
		p.stdin.close()
	}
	for _, s := range p.streams {
		_ = s.file.Close()
	}
	close(p.closedCh)
	p.Log.closed()
}

// exitCode is the code that clients expect: 128+n for death by signal n.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Exited reports whether the leader has ended and its exited event is numbered.
func (p *Process) Exited() bool {
	p.Log.mu.Lock()
	defer p.Log.mu.Unlock()
	return p.Log.exitSeq > 0
}

// Closed is closed once the closed event is about to be numbered: the leader is
// reaped and all streams have ended.
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

// Signal sends a signal to the leader's process group. A group that is gone is
// no error.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.killGroupLocked(sig); err != nil {
		return fmt.Errorf("signal process group %d: %w", p.pid, err)
	}
	return nil
}

// Terminate ends a process that is not closed yet: SIGKILL to its group, now.
// It reports whether the process had not exited. Output that was written
// before is still delivered; a stream that something outside the group holds is
// given up after it has been drained. After closed, Terminate does nothing: what
// let go of its streams may live on.
func (p *Process) Terminate() (running bool) {
	select {
	case <-p.closedCh:
		return false
	default:
	}
	running = !p.Exited()
	p.kill()
	p.finish.Do(func() { go p.finishStreams() })
	return running
}

// Kill ends the process and whatever of its group is left, also after closed.
func (p *Process) Kill() {
	p.Terminate()
	p.kill()
}

// Abandon makes a killed process close although nobody takes its output: what
// the retention cannot hold is lost.
func (p *Process) Abandon() { p.Log.abort() }

func (p *Process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The group may be gone, and nothing else can go wrong for its owner.
	_ = p.killGroupLocked(syscall.SIGKILL)
}

// groupTimeout bounds the wait for a killed group to be gone; members that are
// zombies of a parent that does not reap stay for ever.
const groupTimeout = time.Second

// finishStreams waits until the killed group is gone, so that nothing is
// written any more by what was killed, and then ends the streams that something
// else still holds.
func (p *Process) finishStreams() {
	deadline := time.NewTimer(groupTimeout)
	defer deadline.Stop()
	pause := time.Millisecond
	select {
	case <-p.reapedCh:
	case <-deadline.C:
	}
	for p.groupAlive() {
		select {
		case <-p.closedCh:
			return
		case <-deadline.C:
			for _, s := range p.streams {
				s.finish()
			}
			return
		case <-time.After(pause):
		}
		p.kill()
		pause = min(2*pause, 50*time.Millisecond)
	}
	for _, s := range p.streams {
		s.finish()
	}
}

// GroupAlive reports whether anything of the leader's group lives.
func (p *Process) groupAlive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killGroupLocked(0) == nil && p.groupKnownLocked()
}

// Release gives back the retained output. The process must be closed or be
// killed by the caller before.
func (p *Process) Release() { p.Log.release() }
