package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// DefaultRetainedBytes is how much output a process retains by default.
const DefaultRetainedBytes = 4 << 20

// Spec describes the process to start.
type Spec struct {
	Argv      []string          // Argv[0] is found in PATH as execvp does
	Arg0      *string           // the program's argv[0]; nil: Argv[0]
	Dir       string            // absolute
	DirFile   *os.File          // an open descriptor of Dir: on Linux the process starts in it even if Dir has been replaced; nil: resolve Dir
	NoDirHint string            // advice for the error if Dir does not exist
	Env       map[string]string // the whole environment
	TTY       bool              // use a terminal instead of pipes
	PipeStdin bool              // without TTY: a pipe instead of /dev/null

	Size   protocol.TerminalSize // with TTY; zero: DefaultSize
	Limits Limits

	// Sandbox returns the confinement of the process; nil means no sandbox. Start calls
	// it for each attempt. Dir and Argv[0] are then found inside.
	Sandbox func() (*sandbox.Confinement, error)
	// Asked is set if the client asked for a sandbox, even one that restricts nothing. The exit
	// record then has a guess of whether a sandbox made the process fail.
	Asked bool

	// Drain selects whether closed waits for the end of the streams; "" selects
	// Options.DrainTimeout.
	Drain protocol.Drain
}

// Limits apply to one process together with all its descendants. Zero means no limit.
type Limits struct {
	Timeout        time.Duration // after which the process gets SIGTERM, and after TimeoutGrace SIGKILL
	MaxOutputBytes int64         // of all streams together; a process that writes more is killed
	MemoryBytes    int64
	Pids           int64   // processes and threads
	CPUs           float64 // processors
}

// TimeoutGrace is how long a process may take to exit after its timeout.
const TimeoutGrace = 2 * time.Second

// DefaultSize is the terminal size if the client does not give one.
var DefaultSize = protocol.TerminalSize{Rows: 24, Cols: 80}

// Options configure Start. The zero value means the defaults.
type Options struct {
	Context context.Context // bounds the search for the program; nil: context.Background

	RetainedBytes int64          // default DefaultRetainedBytes
	Budget        *output.Budget // shared with other processes; nil: unlimited
	Listener      Listener       // nil: none
	Input         InputQuota

	// Owner owns the process and the descendants that it leaves running. If it is nil,
	// nothing owns them, and Terminate finds descendants by
	// ownership.MechanismProcessGroup.
	Owner *ownership.Owner
	// Name identifies the process in Owner.Background.
	Name      string
	soleOwner bool // Owner was nil, so the process has an owner of its own

	// DrainTimeout bounds how long after the leader's exit descendants that write to
	// its streams keep the process from closing. Quiet streams close it sooner. Zero
	// means DefaultDrainTimeout; negative means no bound.
	DrainTimeout time.Duration
	quietTime    time.Duration // default quietTime; set by tests
}

// Listener is notified of the events of a process. Its methods are called without locks
// held and must not block.
type Listener interface {
	output.Listener
	// Exited is called with the exit record of the leader.
	Exited(protocol.ExitRecord)
}

// Start starts a child. A failure is an *Error, an *ownership.LimitError, a *PanicError, or
// the error of spec.Sandbox or its Confinement, and leaves nothing behind. The caller must
// call Release when it no longer needs the events.
func Start(spec Spec, opts *Options) (_ *Process, err error) {
	if spec.Size == (protocol.TerminalSize{}) {
		spec.Size = DefaultSize
	}
	p := &Process{
		limits:   spec.Limits,
		requests: make(chan func(*lifecycle)), reapedCh: make(chan struct{}), closedCh: make(chan struct{}), doneCh: make(chan struct{}),
	}
	if opts != nil {
		p.opts = *opts
	}
	p.opts.setDefaults()
	p.drainTimeout = p.opts.drainTimeout(spec.Drain)
	command, err := prepare(p.opts.Context, spec)
	p.opts.Context = nil
	if err != nil {
		return nil, err
	}
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Program: spec.Argv[0], Value: v, Stack: debug.Stack()}
		}
	}()
	p.sandboxed = spec.Asked
	p.description = describe(spec)
	p.sizes.add(0, spec.Size)
	p.tree, err = p.opts.Owner.NewTree(p, ownership.TreeOptions{
		Name: p.opts.Name,
		Limits: ownership.Limits{
			MemoryBytes: spec.Limits.MemoryBytes, Pids: spec.Limits.Pids, CPUs: spec.Limits.CPUs,
		},
	})
	if errors.Is(err, ownership.ErrEnded) {
		err = &Error{Program: spec.Argv[0], Reason: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	started := false
	defer func() {
		if !started { // also after a panic
			p.tree.Discard()
		}
	}()
	child, err := spawn(command, p.tree)
	if err != nil {
		return nil, err
	}
	started = true
	p.run(child)
	return p, nil
}

// PanicError reports that Start panicked. Nothing is left of the process.
type PanicError struct {
	Program string
	Value   any    // of the panic
	Stack   []byte // where it happened
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("cannot start %q because of a fault in the server: %v", e.Program, e.Value)
}

func (o *Options) setDefaults() {
	if o.Context == nil {
		o.Context = context.Background()
	}
	if o.RetainedBytes <= 0 {
		o.RetainedBytes = DefaultRetainedBytes
	}
	if o.Budget == nil {
		o.Budget = output.NewBudget(1 << 62)
	}
	if o.quietTime <= 0 {
		o.quietTime = quietTime
	}
	if o.Owner == nil {
		o.Owner, o.soleOwner = ownership.NewSoleOwner(), true
	}
}

// drainTimeout returns the longest delay of the closed event while descendants hold the streams; 0
// is no limit.
func (o *Options) drainTimeout(asked protocol.Drain) time.Duration {
	switch {
	case asked == protocol.DrainEOF, asked == "" && o.DrainTimeout < 0:
		return 0
	case o.DrainTimeout > 0:
		return o.DrainTimeout
	}
	return DefaultDrainTimeout
}

// run starts the goroutines of a spawned child. After a panic it kills the child.
func (p *Process) run(child *child) {
	p.Log = output.NewLog(p.opts.RetainedBytes, p.opts.Budget, p.opts.Listener)
	p.description.Pid = child.group
	p.pid, p.group, p.forwardSignal, p.master = child.pid, child.group, child.signalForwarder(), child.master
	ok, ownerEnded := false, false
	defer func() {
		go p.runLifecycle(child) // also after a panic, because the child exists
		if ownerEnded {
			p.End(protocol.EndedBySessionExpired, false) // the owner has ended meanwhile
		}
		if !ok {
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
		p.stdin = newInput(child.stdin, child.master == nil, p.opts.Input)
		p.stdin.onResize = p.recordSize
	}
	var limit *outputLimit
	if maxBytes := p.limits.MaxOutputBytes; maxBytes > 0 {
		limit = &outputLimit{exceeded: func() { p.End(protocol.EndedByOutputLimit, false) }}
		limit.left.Store(maxBytes)
	}
	for _, out := range child.outputs {
		s := newStream(p.Log.Writer(out.name), out.file, limit)
		p.streams = append(p.streams, s)
		go s.run() // ends at the end of the stream, or when the life cycle interrupts it
	}
	ownerEnded = p.tree.Started(p.pid)
	ok = true
}

// Description describes a process as it was started.
type Description struct {
	Pid           int
	Argv          []string // shortened by ownership.ShortArgv
	ArgvTruncated bool
	Dir           string
	TTY           bool
	Started       time.Time
}

// describe returns a description without a pid.
func describe(spec Spec) Description {
	d := Description{Dir: spec.Dir, TTY: spec.TTY, Started: time.Now()}
	d.Argv, d.ArgvTruncated = ownership.ShortArgv(spec.Argv)
	return d
}

// Describe returns the description of the process.
func (p *Process) Describe() Description { return p.description }

// child is a spawned leader and the parent's ends of its streams.
type child struct {
	pid    int // of the leader
	group  int // of the program; differs from pid if the leader is a launcher
	handle leaderHandle
	confined
	master *os.File // of the terminal, or nil
	// terminal is the slave of master, or nil. While it is open, reading master does
	// not return EOF: a program may close its terminal and open it again.
	terminal *os.File
	stdin    *os.File // the master, a pipe, or nil
	outputs  []namedFile
}

type namedFile struct {
	name string
	file *os.File
}

// execReason adds what the errno of executing a path does not say. The program was found, so a
// missing file is its interpreter.
func execReason(path string, err error) string {
	if errors.Is(err, syscall.ENOENT) {
		return "the interpreter or loader that " + path + " needs"
	}
	return "execute " + path
}

// makeStreams makes both ends of the child's streams; childFiles are its descriptors 0, 1
// and 2. The caller must close both ends even after an error.
func makeStreams(spec Spec) (ours *child, childFiles []*os.File, err error) {
	ours = &child{}
	if spec.TTY {
		master, slave, err := openTerminal(spec.Size)
		if err != nil {
			return ours, nil, err
		}
		ours.master, ours.terminal, ours.stdin = master, slave, master
		ours.outputs = []namedFile{{"pty", master}}
		return ours, []*os.File{slave, slave, slave}, nil
	}
	var in *os.File
	if spec.PipeStdin {
		in, ours.stdin, err = inputPipe()
	} else {
		in, err = openNull()
	}
	if err != nil {
		return ours, nil, err
	}
	childFiles = append(childFiles, in)
	for _, name := range []string{"stdout", "stderr"} {
		r, w, err := outputPipe()
		if err != nil {
			return ours, childFiles, err
		}
		childFiles = append(childFiles, w)
		ours.outputs = append(ours.outputs, namedFile{name, r})
	}
	return ours, childFiles, nil
}

// closeChildFiles closes the child's ends of the streams, except for the terminal.
func (c *child) closeChildFiles(childFiles []*os.File) {
	for _, f := range childFiles {
		if f != c.terminal {
			_ = f.Close()
		}
	}
}

// closeTerminal lets reads of the terminal's output end with its last holder. It may be
// called twice.
func (c *child) closeTerminal() {
	if c.terminal != nil {
		_ = c.terminal.Close()
	}
}

// close closes the parent's ends of the streams.
func (c *child) close() {
	c.closeTerminal()
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
	for _, out := range c.outputs {
		_ = out.file.Close()
	}
}
