package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"time"

	"execserver/process"
	"execserver/protocol"
)

// EnvPolicy says what a process inherits of the server's environment
// (PROTOCOL.md, "Environment of a process").
type EnvPolicy = protocol.EnvPolicy

// InheritAll returns the policy by which a process has the server's environment.
func InheritAll() *EnvPolicy {
	return &EnvPolicy{Inherit: protocol.InheritAll, IgnoreDefaultExcludes: true}
}

// Size is the size of a terminal in characters.
type Size = protocol.TerminalSize

// Limits bound what a process may use (PROTOCOL.md, "Limits of a process").
type Limits = process.Limits

// Cmd is a command that is to be run, runs, or has run: what exec.Cmd is, on the
// machine of an Environment. Make it with Environment.Command. It cannot be used
// again after Start, and its methods must not be called concurrently; those of
// the embedded Process may be.
type Cmd struct {
	// Path is the program: without a slash it is looked up in the PATH that the
	// process will have, otherwise it is relative to Dir. Args[0] is what the
	// program sees as its name.
	Path string
	Args []string

	// Dir is the directory to run in; relative paths are relative to Info.Dir,
	// which is also what "" means.
	Dir string

	// Env is the environment, in the form "key=value"; of duplicates the last
	// counts. Nil means the one that the server has, with PWD for Dir. With
	// EnvPolicy, Env is added to what that lets the process inherit.
	Env       []string
	EnvPolicy *EnvPolicy

	// Stdin is copied to the process; nil means the null device, or on a
	// terminal nobody typing. At its end stdin is closed, for which the server
	// needs the capability processCloseStdin, or the byte 4 is typed,
	// twice after an unfinished line. Wait
	// waits for the copying to end, unless Stdin is an *os.File.
	Stdin io.Reader

	// Stdout and Stderr get the output; nil drops it. While a Write blocks, the
	// process blocks when it has written more than the server retains. A server
	// without the capability processAck retains little: when 16 MiB wait in the
	// Environment, the client reads from the server only to get the answers to
	// calls, and when 64 MiB wait, not at all. If both
	// are the same comparable writer, it is called by one goroutine at a time
	// and in order. A terminal has only Stdout.
	Stdout, Stderr io.Writer

	// TTY makes the process lead a terminal of that size; 0 rows or columns
	// mean 24 and 80, which is also what servers without the capability
	// processResize give every terminal.
	TTY *Size

	// Limits bound what the process may use, where the capability processLimits
	// is announced; of memory, processes and processor time not everywhere: the
	// start fails then. Zero values mean no bound.
	Limits Limits

	// ToolCallID is passed to the server for its records.
	ToolCallID string

	// Cancel is called when the context of the command ends before the process;
	// nil means Terminate. Wait waits for it, and returns its error if
	// the process succeeds, but for os.ErrProcessDone. WaitDelay is the time that the
	// process then has to exit before it is killed, and the time that Wait waits
	// for output after the process has exited, because descendants hold it; 0
	// means no bound. See exec.Cmd. With WaitDelay, Wait gives the server 10 s to tell
	// the ending of a process that was killed.
	Cancel    func() error
	WaitDelay time.Duration

	// Process is the running process, once Start has succeeded.
	*Process

	// Exit is how the process ended, once Wait knows.
	Exit *Exit

	// SnapshotBytes bounds the output in a Snapshot; 0 means 1 MiB.
	SnapshotBytes int

	env        *Environment
	ctx        context.Context
	p          *Process // what Process will be
	running    bool     // Run was called, so that nobody can ask for events meanwhile
	stdin      bool     // StdinPipe was called
	copies     []<-chan error
	stdinCopy  <-chan error // nil, or copying Stdin
	stopStdin  context.CancelFunc
	stopCancel func() bool
	cancelled  chan error    // gets what Cancel returned, if it was called
	delayed    chan struct{} // closed when the context has ended and WaitDelay is over
	lost       chan struct{} // closed when nobody tells how the process ended that was killed then
	over       chan struct{} // closed when Wait returns
	waited     bool
	tried      bool // Start has asked for the process

	followers []follower
	began     chan struct{} // closed when Start has succeeded or failed
	collected *collected    // nil: not by Collect
}

// follower is told of the life of a process, by one goroutine at a time.
type follower interface {
	begin(p *Process)
	event(e Event) // output, and exited
	end()          // there will be no more
}

// Command returns a command that runs the program with the arguments. The
// process is killed when ctx ends before it, as with exec.CommandContext.
func (e *Environment) Command(ctx context.Context, name string, args ...string) *Cmd {
	if ctx == nil {
		panic("client: nil Context")
	}
	return &Cmd{
		Path: name, Args: append([]string{name}, args...),
		env: e, ctx: ctx, p: newProcess(e), cancelled: make(chan error, 1), began: make(chan struct{}),
		delayed: make(chan struct{}), lost: make(chan struct{}), over: make(chan struct{}),
	}
}

// String describes the command for people.
func (c *Cmd) String() string {
	return strings.Join(append([]string{c.Path}, c.Args[min(1, len(c.Args)):]...), " ")
}

// Run starts the command and waits for it. Output that goes nowhere because
// Stdout and Stderr are nil is dropped where that is cheapest: what Events and
// Read tell of it afterwards is not defined.
func (c *Cmd) Run() error {
	c.running = true
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start starts the command. The error is a *StartError when the machine
// refused, and an *UnsupportedError when the server cannot do what the fields
// ask for.
func (c *Cmd) Start() error {
	if c.Process != nil || c.tried {
		return errAlreadyStarted
	}
	if err := c.ctx.Err(); err != nil {
		return context.Cause(c.ctx)
	}
	if c.Stdin != nil && c.TTY == nil && !c.env.has(capCloseStdin) {
		return &UnsupportedError{"run with Stdin, whose end the process must see", capCloseStdin}
	}
	if c.Limits != (Limits{}) && !c.env.has(capLimits) {
		return &UnsupportedError{"limit a process", capLimits}
	}
	params := c.params()
	if params.dir == "" {
		return &StartError{c.Path, errDirGone}
	}
	if err := c.attach(); err != nil {
		return err
	}
	c.tried = true
	if err := c.start(params); err != nil {
		c.p.fail(err)
		close(c.began)
		_ = c.awaitCopies() // they have nothing to say
		return err
	}
	c.Process = c.p
	for _, f := range c.followers {
		f.begin(c.p)
	}
	close(c.began)
	c.stopCancel = context.AfterFunc(c.ctx, c.cancel)
	if c.Stdin != nil {
		c.copyStdin()
	}
	return nil
}

// unheard reports whether nothing takes the output, or counts it.
func (c *Cmd) unheard() bool {
	return c.TTY == nil && c.Stdout == nil && c.Stderr == nil && c.p.queue == [2]*queue{} &&
		c.followers == nil && c.Limits.MaxOutputBytes == 0
}

func (c *Cmd) start(params *startRequest) error {
	if err := c.env.register(c.p); err != nil {
		return err
	}
	params.ProcessID = c.p.ID
	err := c.env.back.start(c.ctx, c.p, params)
	if errors.As(err, new(*protocol.Error)) {
		return &StartError{c.Path, err}
	}
	return err
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
