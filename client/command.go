package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// EnvPolicy selects the variables that a process inherits from the server's environment
// (PROTOCOL.md, "Environment of a process").
type EnvPolicy = protocol.EnvPolicy

// InheritAll returns a new policy that passes on the server's whole environment, including variables
// such as API keys.
func InheritAll() *EnvPolicy {
	return &EnvPolicy{Inherit: protocol.InheritAll, IgnoreDefaultExcludes: true}
}

// Size is the size of a terminal, with the fields Rows and Cols in characters.
type Size = protocol.TerminalSize

// Limits bound the resources of a process and its descendants. Zero means no bound. A Cmd with
// limits needs the capability processLimits (EXTENSIONS.md, "processLimits").
type Limits struct {
	// Timeout is how long the process may run before the server sends SIGTERM, and SIGKILL two
	// seconds later. It is rounded down to milliseconds, and is at least one.
	Timeout time.Duration

	MaxOutputBytes int64   // of all streams together; the server kills a process that writes more
	MemoryBytes    int64   // main memory; the process gets no swap
	Pids           int64   // processes and threads at the same time
	CPUs           float64 // processors: 0.5 is half of one
}

// Cmd is a command on the machine of an Environment, like exec.Cmd. Environment.Command returns one.
// Its fields must not change after Start, which can be called once. A Cmd must not be used
// concurrently, but its Process and its pipes may.
type Cmd struct {
	// Path is the program. The server looks up a name without a slash in the PATH that the
	// process will have; any other relative path is relative to Dir. Args holds the arguments,
	// of which the first is the name that the program sees as its own; empty means {Path}.
	// Path, Args and Env must be UTF-8.
	Path string
	Args []string

	// Dir is the working directory. A relative path is relative to the directory in which the
	// server was started, Info.Dir, and "" means that directory.
	Dir string

	// Env is the environment, in the form "key=value"; if a key is duplicated, the last value
	// is used. If Env and EnvPolicy are nil, the process inherits the server's whole
	// environment (see InheritAll), with PWD set to Dir if Dir is not "".
	Env []string

	// EnvPolicy, if not nil, selects inherited variables, to which Env is added.
	EnvPolicy *EnvPolicy

	// Stdin is copied to the process's stdin. Nil means the null device, or on a terminal no
	// input. At EOF the client closes the process's stdin. If the server lacks the capability
	// processCloseStdin, Start fails. On a terminal the client types Ctrl-D instead, twice if the
	// last line is unfinished.
	//
	// Wait waits until the copying has ended, unless Stdin is an *os.File.
	Stdin io.Reader

	// Stdout and Stderr receive the output; nil discards it. While a Write blocks, the process
	// blocks once it has written more than the server retains. If both are the same writer, of a
	// type that can be compared with ==, at most one goroutine at a time calls Write, in the
	// order in which the server read the output. A terminal has only Stdout.
	//
	// If the server lacks the capability processAck, the client itself holds unread output. With
	// 16 MiB of it in the Environment, the client reads from the server only while a call awaits
	// its reply, and with 64 MiB not at all.
	Stdout, Stderr io.Writer

	// TTY, if not nil, runs the process on a terminal of that size. If Rows or Cols is 0, the
	// size is 24×80. Servers without the capability processResize always use 24×80.
	TTY *Size

	// Limits bounds the resources of the process. Start fails if the server lacks the capability
	// processLimits, or cannot limit memory, processes or processor time as requested.
	Limits Limits

	// Sandbox, if not nil, confines the process and its descendants. Start fails if the server
	// cannot enforce it, with an *UnsupportedError if the server has no sandboxes.
	Sandbox *Sandbox

	// ToolCallID is sent to the server, to relate the command to a model's tool call. It does not
	// affect the command.
	ToolCallID string

	// Cancel is called if the context of the command is done before the process has exited.
	// Unlike in exec.Cmd, nil means to kill the process and its descendants. Wait waits for
	// Cancel to return. If the process then exits with code 0, Wait returns the cause of the
	// context, joined with Cancel's error if that is not nil; or nil, if Cancel returned
	// os.ErrProcessDone.
	Cancel func() error

	// WaitDelay limits two waits; 0 means no limit. Unlike in exec.Cmd, the first begins when
	// Cancel has returned: if the process has not exited after WaitDelay, the client kills it.
	// After the exit, Wait waits at most WaitDelay for the copying of Stdin, Stdout and Stderr.
	// If the server does not report within 10 s that a process killed after WaitDelay has
	// exited, Wait returns a *LostError.
	WaitDelay time.Duration

	// LeaveBackground makes Wait ignore descendants that still hold the output after the exit:
	// it returns when they have been quiet for 250 ms, and after at most 2 s. Otherwise Wait
	// waits until no process holds the output, as in os/exec, if the server has the capability
	// processDrain.
	LeaveBackground bool

	// Process is the process that Start has started. Before, it is nil, and calling its methods
	// returns an error.
	*Process

	// Exit is how the process exited. Wait sets it, to nil if that is unknown.
	Exit *Exit

	// SnapshotBytes bounds Snapshot.Output, in bytes, for Collect and Follow; 0 means 1 MiB.
	SnapshotBytes int

	env        *Environment
	ctx        context.Context
	p          *Process   // becomes Process when Start succeeds
	readers    [2]*cursor // of stdout or the terminal, and of stderr; nil drops the output
	stdin      bool       // StdinPipe was called
	copies     []<-chan error
	stdinCopy  <-chan error // result of copying Stdin; may be nil
	stopStdin  context.CancelFunc
	stopCancel func() bool
	cancelled  chan error    // receives the result of Cancel, if it was called
	delayed    chan struct{} // closed when the context has ended and WaitDelay is over
	lost       chan struct{} // closed when a process killed after WaitDelay is not reported to have ended within killTimeout
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

// String returns the program and its arguments, separated by spaces. It is intended for
// people, not as input to a shell.
func (c *Cmd) String() string {
	return strings.Join(append([]string{c.Path}, c.Args[min(1, len(c.Args)):]...), " ")
}

// Run starts the command and waits for it. It returns the error of Start or Wait.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start starts the command, and returns when the process has started. The process keeps running if
// the connection breaks.
//
// The error is a *StartError if the server could not start the command. It is an *UnsupportedError
// if the server lacks a capability that the fields require. Start may wait for a connection. If the
// command's context is done first, Start returns its cause, and the client kills the process if the
// server starts it later.
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
	err := c.request(params)
	if errors.As(err, new(*protocol.Error)) {
		return &StartError{c.Path, err}
	}
	return err
}

// request has the server start the process, which receives its events from then on. If the
// command's context ends first, the process is terminated. A repeated request may find that
// the process exists: it is this one, because its id is unique.
func (c *Cmd) request(s *startRequest) error {
	if err := wantUTF8(&s.StartParams); err != nil {
		return &StartError{s.Argv[0], err}
	}
	conns, remote := c.env.conns, c.env.remote
	s.Cwd = conns.machine.uri(s.dir)
	if conns.has(capStartID) {
		s.StartID = &c.p.ID
	}
	epoch := conns.currentEpoch()
	for repeated := false; ; repeated = true {
		if _, _, err := conns.current(c.ctx); err != nil {
			return err
		}
		c.p.asked.Store(true)
		_, err := conns.tryOpening(c.ctx, protocol.MethodStart, s.StartParams, func(ctx context.Context, _ *rpc.Conn) {
			// abandonStart terminates it too, but its request may overtake the start.
			_ = remote.terminate(ctx, c.p.ID, 0)
		})
		switch {
		case errors.As(err, new(*brokenError)):
			continue
		case repeated && errors.Is(err, protocol.ErrInvalidRequest) && remote.exists(c.ctx, c.p.ID):
			err = nil
		case err != nil && c.ctx.Err() != nil:
			c.abandonStart()
		}
		if err != nil {
			return remote.startError(c.ctx, s.Cwd, s.dir, err)
		}
		c.p.markStarted(conns.currentEpoch() != epoch)
		return nil
	}
}

// abandonStart terminates the process of a start whose context has ended.
func (c *Cmd) abandonStart() {
	c.env.run(func() {
		ctx, cancel := context.WithTimeout(c.env.ctx, c.env.conns.undoTimeout())
		defer cancel()
		_ = c.env.remote.terminate(ctx, c.p.ID, 0) // if it fails, the end of the session kills the process
	})
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// startRequest is the params of process/start, and the directory as the machine spells
// it.
type startRequest struct {
	protocol.StartParams
	dir string // Cwd, which Cmd.request sets
}

// params returns the params of process/start, without the id.
func (c *Cmd) params() *startRequest {
	s := &startRequest{dir: c.env.Info().resolve(c.Dir)}
	s.Argv = append([]string{c.Path}, c.Args[min(1, len(c.Args)):]...)
	if len(c.Args) > 0 && c.Args[0] != c.Path {
		s.Arg0 = &c.Args[0]
	}
	s.Env = make(map[string]string, len(c.Env))
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		s.Env[name] = value
	}
	switch {
	case c.EnvPolicy != nil:
		s.EnvPolicy = wholePolicy(*c.EnvPolicy)
	case c.Env == nil:
		s.EnvPolicy = wholePolicy(*InheritAll())
		if c.Dir != "" && c.env.Info().OS != "windows" {
			s.Env["PWD"] = s.dir
		}
	}
	s.PipeStdin = c.stdin || c.Stdin != nil
	if c.TTY != nil {
		s.TTY = true
		size := *c.TTY
		if size.Rows == 0 || size.Cols == 0 {
			size = Size{Rows: 24, Cols: 80}
		}
		s.Size = &size
		c.p.tty = true
	}
	if c.env.has(capDrain) && !c.LeaveBackground {
		s.Drain = protocol.DrainEOF // Wait waits for all output, as in os/exec
	}
	s.StartLimits = wireLimits(c.Limits)
	if c.Sandbox != nil {
		s.Sandbox = c.Sandbox.wire(c.env.Info(), s.dir)
	}
	if c.ToolCallID != "" {
		s.Metadata = &protocol.Metadata{ToolCallID: &c.ToolCallID}
	}
	return s
}

// wireLimits converts limits for the wire.
func wireLimits(l Limits) (w protocol.StartLimits) {
	set := func(to **uint64, n int64) {
		if n > 0 {
			*to = new(uint64(n))
		}
	}
	if l.Timeout > 0 {
		set(&w.TimeoutMs, max(1, l.Timeout.Milliseconds()))
	}
	set(&w.MaxOutputBytes, l.MaxOutputBytes)
	set(&w.MemoryBytes, l.MemoryBytes)
	set(&w.Pids, l.Pids)
	if l.CPUs > 0 {
		w.CPUs = &l.CPUs
	}
	return w
}

// wholePolicy replaces nil where the wire does not allow null.
func wholePolicy(p EnvPolicy) *EnvPolicy {
	if p.Exclude == nil {
		p.Exclude = []string{}
	}
	if p.IncludeOnly == nil {
		p.IncludeOnly = []string{}
	}
	p.Set = maps.Clone(p.Set)
	if p.Set == nil {
		p.Set = map[string]string{}
	}
	return &p
}

// wantUTF8 returns an error if a start has text that is not UTF-8. The protocol cannot
// carry such text, and the JSON encoder would silently replace it with U+FFFD.
func wantUTF8(s *protocol.StartParams) error {
	want := func(what, text string) error {
		if utf8.ValidString(text) {
			return nil
		}
		return fmt.Errorf("%s %q is not UTF-8, and a server takes nothing else", what, text)
	}
	for i, arg := range s.Argv {
		if err := want(fmt.Sprintf("argument %d,", i), arg); err != nil {
			return err
		}
	}
	if s.Arg0 != nil {
		if err := want("argument 0,", *s.Arg0); err != nil {
			return err
		}
	}
	for name, value := range s.Env {
		if err := want("environment variable", name+"="+value); err != nil {
			return err
		}
	}
	return nil
}
