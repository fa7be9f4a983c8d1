package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"time"

	"execserver/protocol"
)

// EnvPolicy says what a process inherits from the server's environment (PROTOCOL.md,
// "Environment of a process").
type EnvPolicy = protocol.EnvPolicy

// InheritAll returns a policy that gives a process the server's whole environment. The
// caller may change it.
func InheritAll() *EnvPolicy {
	return &EnvPolicy{Inherit: protocol.InheritAll, IgnoreDefaultExcludes: true}
}

// Size is the size of a terminal in rows and columns of characters.
type Size = protocol.TerminalSize

// Limits bound the resources of a process and its descendants (PROTOCOL.md, "Limits of a
// process"). Zero means no bound.
type Limits struct {
	Timeout        time.Duration // from the start, to the millisecond; then SIGTERM, and SIGKILL two seconds later
	MaxOutputBytes int64         // of all streams together; a process that writes more is killed
	MemoryBytes    int64         // main memory; the process gets no swap
	Pids           int64         // processes and threads at the same time
	CPUs           float64       // processors: 0.5 is half of one
}

// Cmd is a command on the machine of an Environment, like exec.Cmd. Environment.Command
// makes one. Its fields must not change after Start, which can be called once. The methods
// of a Cmd must not be called concurrently, except those of the embedded Process.
type Cmd struct {
	// Path is the program. The server looks up a name without a slash in the PATH that
	// the process will have; any other relative path is relative to Dir. Args are the
	// arguments, the first of which is the name that the program sees as its own. They
	// must be UTF-8, as must Env.
	Path string
	Args []string

	// Dir is the working directory. A relative path is relative to Info.Dir, and "" means
	// Info.Dir.
	Dir string

	// Env is the environment, in the form "key=value"; of duplicates the last counts. Nil
	// means the server's environment, with PWD set to Dir. With EnvPolicy, Env is added
	// to the variables that the policy lets the process inherit.
	Env       []string
	EnvPolicy *EnvPolicy

	// Stdin is copied to the process. Nil means the null device, or on a terminal no
	// input. At the end of Stdin the client closes the process's stdin, for which the
	// server needs the capability processCloseStdin; on a terminal it types the byte 4
	// instead, twice after an unfinished line. Wait waits for the copying to end, unless
	// Stdin is an *os.File.
	Stdin io.Reader

	// Stdout and Stderr receive the output; nil drops it. While a Write blocks, the
	// process blocks when it has written more than the server retains. A server without
	// the capability processAck retains little: when 16 MiB wait in the Environment, the
	// client reads from the server only to get the replies to calls, and when 64 MiB
	// wait, not at all. If both are the same comparable writer, only one goroutine at a
	// time calls it, in order. A terminal has only Stdout.
	Stdout, Stderr io.Writer

	// TTY runs the process on a terminal of that size. 0 rows or columns mean 24 and 80,
	// which is the size of every terminal on servers without the capability
	// processResize.
	TTY *Size

	// Limits bound the resources of the process, if the server has the capability
	// processLimits. Not every server can limit memory, processes and processor time;
	// then the start fails. Zero values mean no bound.
	Limits Limits

	// Sandbox confines the process and its descendants; nil does not. The server must
	// announce that it has sandboxes, or the start fails with an *UnsupportedError. It also
	// fails if the server cannot enforce the sandbox.
	Sandbox *Sandbox

	// ToolCallID is for the server's records.
	ToolCallID string

	// Cancel is called when the context of the command ends before the process. If it is
	// nil, the client kills the process and its descendants at once. Wait waits for Cancel,
	// and returns its error if the process succeeds, unless it is os.ErrProcessDone.
	//
	// WaitDelay bounds two waits, as in exec.Cmd; 0 means no bound. If Cancel only asks the
	// process to end, the client kills it WaitDelay after Cancel has returned. And when the
	// process has exited, Wait waits no longer than WaitDelay for Stdin, Stdout and Stderr,
	// which descendants may hold. If the server does not report the end of a process killed
	// after WaitDelay within 10 s, Wait returns an *ExitMissingError.
	Cancel    func() error
	WaitDelay time.Duration

	// LeaveBackground makes Wait not wait for the output of programs that the process
	// leaves in the background, as Codex does not: it returns when they have been quiet
	// for a moment. Otherwise Wait waits until nobody holds the output, as in os/exec.
	LeaveBackground bool

	// Process is the running process after a successful Start. Before, it is nil, and its
	// methods return an error.
	*Process

	// Exit says how the process ended. Wait sets it.
	Exit *Exit

	// SnapshotBytes bounds the output in a Snapshot, in bytes; 0 means 1 MiB.
	SnapshotBytes int

	env        *Environment
	ctx        context.Context
	p          *Process // the later Process
	stdin      bool     // StdinPipe was called
	copies     []<-chan error
	stdinCopy  <-chan error // result of copying Stdin; may be nil
	stopStdin  context.CancelFunc
	stopCancel func() bool
	cancelled  chan error    // receives the result of Cancel, if it was called
	delayed    chan struct{} // closed when the context has ended and WaitDelay is over
	lost       chan struct{} // closed when the server does not report the end of a process killed then
	over       chan struct{} // closed when Wait returns
	waited     bool
	tried      bool // Start has requested the process

	followers []follower
	began     chan struct{} // closed when Start has succeeded or failed
	collected *collected    // nil without Collect
}

// follower receives the events of a process, from one goroutine at a time.
type follower interface {
	begin(p *Process)
	event(e Event) // output, and exited
	end()          // no more events follow
}

// Command returns a command that runs the program with the arguments (PROTOCOL.md,
// "process/start"). It does not start the command. When ctx ends before the process, the
// process is killed with its descendants, as with exec.CommandContext; see Cmd.Cancel.
//
// Use ctx to end the command when its caller no longer needs it: this works with every
// server, but the client must reach it. Use Limits.Timeout to bound how long the command
// runs: the server enforces that, even while the connection is broken.
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

// String returns the program and its arguments, separated by spaces. It is for people and
// no input for a shell.
func (c *Cmd) String() string {
	return strings.Join(append([]string{c.Path}, c.Args[min(1, len(c.Args)):]...), " ")
}

// Run starts the command and waits for it. The error is that of Start or Wait.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start starts the command. It returns when the process has started. The process does not
// end with the connection.
//
// The error is a *StartError if the server could not start the command, an
// *UnsupportedError if the server lacks a capability that the fields require, or the cause
// of the command's context. Start may wait for a connection; the context unblocks it, and
// a process that the server starts nevertheless is killed.
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
	if c.Sandbox != nil && c.env.Info().Sandbox == nil {
		return &UnsupportedError{"run in a sandbox", "sandbox"}
	}
	params := c.params()
	if params.dir == "" || c.Sandbox != nil && !c.Sandbox.resolves(c.env.Info()) {
		return &StartError{c.Path, errDirGone}
	}
	if err := c.attach(); err != nil {
		return err
	}
	c.tried = true
	if err := c.start(params); err != nil {
		c.p.fail(err)
		close(c.began)
		for _, done := range c.copies {
			<-done // it has nothing to report
		}
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

func (c *Cmd) start(params *startRequest) error {
	if err := c.env.register(c.p); err != nil {
		return err
	}
	params.ProcessID = c.p.ID
	err := c.env.link.start(c.ctx, c.p, params)
	if errors.As(err, new(*protocol.Error)) {
		return &StartError{c.Path, err}
	}
	return err
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
