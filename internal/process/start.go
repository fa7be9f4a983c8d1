package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// DefaultRetainedBytes is how much output a process retains by default.
const DefaultRetainedBytes = 4 << 20

// Spec says what to start.
type Spec struct {
	Argv      []string          // Argv[0] is found in PATH as execvp does
	Arg0      *string           // what the program sees as argv[0]; nil: Argv[0]
	Dir       string            // absolute
	DirFile   *os.File          // Dir, opened: on Linux the process begins there, wherever Dir leads by then; nil: where it leads
	NoDirHint string            // what to do if Dir does not exist, for the error
	Env       map[string]string // the whole environment
	TTY       bool              // a terminal instead of pipes
	PipeStdin bool              // without TTY: a pipe instead of /dev/null

	Size   protocol.TerminalSize // with TTY; zero: DefaultSize
	Limits Limits

	// Sandbox makes the confinement of the process; nil: the process is not in a
	// sandbox. Start calls it for each attempt. A nil Confinement confines nothing.
	Sandbox func() (*sandbox.Confinement, error)

	// Drain says whether closed waits for the end of the streams; "": what
	// Options.DrainTimeout says.
	Drain protocol.Drain
}

// DefaultSize is the size of a terminal if the client does not give one.
var DefaultSize = protocol.TerminalSize{Rows: 24, Cols: 80}

// Options of Start. The zero value means the defaults.
type Options struct {
	Context context.Context // ends the search for the program; nil: nothing does

	RetainedBytes int64          // default DefaultRetainedBytes
	Budget        *output.Budget // shared with other processes; nil: none
	Listener      Listener       // nil: nobody
	Input         InputQuota

	// Owner owns the process and the descendants that it leaves running. With nil nobody
	// owns those, and Terminate finds descendants by ownership.MeansProcessGroup.
	Owner *ownership.Owner
	// Name of the process in Owner.Background.
	Name      string
	soleOwner bool // Owner was nil: the process has one of its own

	// DrainTimeout bounds how long after the leader's exit descendants that write
	// to its streams keep the process from closing. If they are quiet it closes
	// sooner. 0: DefaultDrainTimeout; negative: as long as they hold the streams.
	DrainTimeout time.Duration
	quietTime    time.Duration // default quietTime; tests change it
}

// Listener learns what happens to a process. Its methods are called without locks and
// must not block.
type Listener interface {
	output.Listener
	// Exited says how the leader has ended.
	Exited(protocol.ExitRecord)
}

// Start starts a child. A failure is an *Error, an *ownership.LimitError, a *PanicError,
// or the error of spec.Sandbox or its Confinement, and leaves nothing behind. The caller
// must call Release when it needs the events no more.
func Start(spec Spec, opts *Options) (_ *Process, err error) {
	if spec.Size == (protocol.TerminalSize{}) {
		spec.Size = DefaultSize
	}
	p := &Process{
		limits: spec.Limits,
		asks:   make(chan func(*life)), reapedCh: make(chan struct{}), closedCh: make(chan struct{}), overCh: make(chan struct{}),
	}
	if opts != nil {
		p.opts = *opts
	}
	p.opts.complete()
	p.drain = p.opts.closeDelay(spec.Drain)
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
	p.denials = spec.Sandbox != nil
	p.about = describe(spec)
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
	spawned := false
	defer func() {
		if !spawned { // also after a panic
			p.tree.Discard()
		}
	}()
	child, err := spawn(command, p.tree)
	if err != nil {
		return nil, err
	}
	spawned = true
	p.run(child)
	return p, nil
}

// PanicError says that Start panicked. Nothing is left of the process.
type PanicError struct {
	Program string
	Value   any    // of the panic
	Stack   []byte // where it happened
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("cannot start %q because of a fault in the server: %v", e.Program, e.Value)
}

func (o *Options) complete() {
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
		o.Owner, o.soleOwner = ownership.SoleOwner(), true
	}
}

// run starts the goroutines of a child that has been spawned. After a panic
// it ends the child.
func (p *Process) run(child *child) {
	p.Log = output.NewLog(p.opts.RetainedBytes, p.opts.Budget, p.opts.Listener)
	p.about.Pid = child.group
	p.pid, p.group, p.passSignal, p.master = child.pid, child.group, child.passSignal(), child.master
	running, late := false, false
	defer func() {
		go p.live(child) // after a panic too, for the child exists
		if late {
			p.End(protocol.EndedBySessionExpired, false) // the owner has ended meanwhile
		}
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
		p.stdin = newInput(child.stdin, child.master == nil, p.opts.Input)
		p.stdin.sized = p.sized
	}
	var limit *outputLimit
	if most := p.limits.MaxOutputBytes; most > 0 {
		limit = &outputLimit{over: func() { p.End(protocol.EndedByOutputLimit, false) }}
		limit.left.Store(most)
	}
	for _, out := range child.outputs {
		s := newStream(p.Log.Writer(out.name), out.file, limit)
		p.streams = append(p.streams, s)
		go s.run() // ends at the end of the stream, or when live interrupts it
	}
	late = p.tree.Started(p.pid, p.group)
	running = true
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

// describe describes a process that has no process id yet.
func describe(spec Spec) Description {
	d := Description{Dir: spec.Dir, TTY: spec.TTY, Started: time.Now()}
	d.Argv, d.ArgvTruncated = ownership.ShortArgv(spec.Argv)
	return d
}

// Describe returns the description of the process.
func (p *Process) Describe() Description { return p.about }
