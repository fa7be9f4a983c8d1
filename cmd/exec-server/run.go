package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"execserver/client"
)

// Exit codes of run when it is not the command that says how it ended, those of
// env(1) and of shells.
const (
	exitFailed     = 125
	exitNotAllowed = 126
	exitNotFound   = 127
	exitSignal     = 128 // plus the number
)

// exitCode is returned by a subcommand that ends the program with a code; there is
// nothing more to say.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// runFailure is what keeps run from telling how its command ended.
type runFailure struct {
	text string
	code int
}

func (e *runFailure) Error() string { return e.text }

// runOptions are the flags of run.
type runOptions struct {
	tty       bool
	url, env  string
	tokenFile string
}

func newRunCommand() *cobra.Command {
	var o runOptions
	command := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a command, here or on a server",
		Long: "run runs a command on a server as if it were here: with its input and output, its signals,\n" +
			"and its exit code. Without --url and --env it runs here, by the same means.",
		Example: "  exec-server run --url ws://127.0.0.1:8765 -- make test\n" +
			"  exec-server run -t --env box -- bash\n" +
			"  tar c . | exec-server run --env box -- tar x -C /tmp",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("there is no command to run; put it after --"), command}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			switch {
			case o.url != "" && o.env != "":
				return &usageError{errors.New("--url and --env exclude each other"), command}
			case o.url == "" && command.Flags().Changed("url"):
				return &usageError{errors.New("--url is empty; leave it out to run the command here"), command}
			case o.env == "" && command.Flags().Changed("env"):
				return &usageError{errors.New("--env is empty; leave it out to run the command here"), command}
			case o.tokenFile != "" && o.url == "":
				return &usageError{errors.New("--token-file is for --url"), command}
			}
			return o.run(args)
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // what follows the command is the command's
	f.BoolVarP(&o.tty, "tty", "t", false, "run the command on a terminal")
	f.StringVar(&o.url, "url", "", "`URL` of a server: ws://HOST:PORT, wss://HOST:PORT or unix:///PATH")
	f.StringVar(&o.env, "env", "", "`name` of an environment in Codex's environments.toml")
	f.StringVar(&o.tokenFile, "token-file", "", "`file` with the bearer token for --url")
	f.BoolP("help", "h", false, "print this text")
	return command
}

// run runs the command and returns its exit code as an exitCode.
func (o *runOptions) run(args []string) error {
	// The writers tell that nobody reads any more, and then the command is ended.
	ignoreBrokenPipes()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, heeded()...)
	defer signal.Stop(signals)
	started, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		endByFirst(signals, started, cancel)
	}()
	r, restore, err := o.start(ctx, cancel, args)
	close(started)
	<-stopped
	if r != nil {
		defer r.close()
		defer restore()
	}
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		return exitCode(exitSignal + int(s.signal))
	}
	if err != nil {
		return advise(err)
	}
	return r.run(signals)
}

// start opens the environment and starts the command there. The runner is nil
// when there is no environment.
func (o *runOptions) start(ctx context.Context, cancel context.CancelCauseFunc, args []string) (r *runner, restore func(), err error) {
	env, err := o.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	r = &runner{env: env, command: env.Command(ctx, args[0], args[1:]...), cancel: cancel}
	if restore, err = r.connect(o.tty); err != nil {
		return r, func() {}, err
	}
	return r, restore, r.command.Start()
}

// heeded are the signals that run passes on: not those that it was started to
// ignore, as by nohup.
func heeded() (signals []os.Signal) {
	for _, s := range passedSignals {
		if s == resizeSignal || !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// endByFirst ends what cancel ends by the first signal that comes before started is
// closed: there is no command yet that it could be passed on to.
func endByFirst(signals <-chan os.Signal, started <-chan struct{}, cancel context.CancelCauseFunc) {
	for {
		select {
		case <-started:
			return
		case s := <-signals:
			if s != resizeSignal {
				cancel(signalError{s.(syscall.Signal)})
				return
			}
		}
	}
}

func (o *runOptions) open(ctx context.Context) (*client.Environment, error) {
	opts := &client.Options{Name: "exec-server-run", TokenFile: o.tokenFile}
	switch {
	case o.url != "":
		return client.Dial(ctx, o.url, opts)
	case o.env != "":
		return client.Open(ctx, o.env, opts)
	}
	return client.Local(opts)
}

// runner is one command and what it is connected to.
type runner struct {
	env     *client.Environment
	command *client.Cmd
	cancel  context.CancelCauseFunc
	endless io.WriteCloser // stdin that cannot be closed; nil: Cmd.Stdin is used
}

// connect gives the command our standard input and output. restore gives the
// terminal back.
func (r *runner) connect(tty bool) (restore func(), err error) {
	r.command.Stdout = &outlet{os.Stdout, r.cancel}
	r.command.Stderr = &outlet{os.Stderr, r.cancel}
	if tty {
		return r.connectTerminal()
	}
	restore = func() {}
	switch {
	case isNull(os.Stdin):
	case r.env.Info().Capabilities["processCloseStdin"]:
		r.command.Stdin = os.Stdin
	case term.IsTerminal(int(os.Stdin.Fd())):
		r.endless, err = r.command.StdinPipe()
	default:
		err = errors.New("this server cannot tell the command where its input ends; add </dev/null, use -t, or update the server")
	}
	return restore, err
}

// isNull reports whether f is closed or the null device: then there is nothing
// to pass on.
func isNull(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}

// connectTerminal makes our terminal that of the command.
func (r *runner) connectTerminal() (restore func(), err error) {
	r.command.TTY = &client.Size{}
	r.command.Stdin = os.Stdin
	r.command.EnvPolicy = client.InheritAll()
	if name := os.Getenv("TERM"); name != "" {
		r.command.Env = []string{"TERM=" + name}
	}
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return func() {}, nil
	}
	*r.command.TTY = terminalSize(fd)
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("cannot take over the terminal: %w", err)
	}
	return func() { _ = term.Restore(fd, state) }, nil
}

func terminalSize(fd int) client.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return client.Size{}
	}
	return client.Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// errBrokenPipe is why a command is ended whose output nobody reads any more.
var errBrokenPipe = errors.New("broken pipe")

// outlet is where output goes.
type outlet struct {
	file   *os.File
	cancel context.CancelCauseFunc
}

// Write implements io.Writer.
func (o *outlet) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		o.cancel(errBrokenPipe)
	}
	return n, err
}

// run waits for the command to end, and passes signals on meanwhile.
func (r *runner) run(signals <-chan os.Signal) error {
	if r.endless != nil {
		go func() { _, _ = io.Copy(r.endless, os.Stdin) }()
	}
	ended := make(chan error, 1)
	go func() { ended <- r.command.Wait() }()
	var passing chan error // not nil while the first of waiting is passed on
	var since time.Time    // when that began
	var waiting []syscall.Signal
	for {
		if passing == nil && len(waiting) > 0 {
			passing, since = make(chan error, 1), time.Now()
			go r.pass(waiting[0], passing)
		}
		select {
		case err := <-ended:
			return r.result(err)
		case err := <-passing:
			first := waiting[0]
			passing, waiting = nil, waiting[1:]
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return unanswered(first)
			case err != nil && !errors.Is(err, os.ErrProcessDone):
				r.cancel(signalError{first})
			}
		case s := <-signals:
			switch {
			case s == resizeSignal:
				go r.resize()
			case passing != nil && time.Since(since) > signalPatience:
				return unanswered(s.(syscall.Signal))
			default:
				waiting = append(waiting, s.(syscall.Signal))
			}
		}
	}
}

// closeTimeout bounds how long the program waits, before it exits, for a server that
// does not answer to be told that the client is done.
const closeTimeout = 5 * time.Second

func (r *runner) close() {
	closed := make(chan struct{})
	go func() { // the program exits without it if it takes too long
		defer close(closed)
		_ = r.env.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

// signalTimeout is how long the server may take to answer that it has passed a
// signal on. Then run ends, and after signalPatience already when another signal
// comes.
const (
	signalTimeout  = 5 * time.Second
	signalPatience = time.Second
)

func (r *runner) pass(s syscall.Signal, passed chan<- error) {
	ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
	defer cancel()
	passed <- r.command.Signal(ctx, s)
}

func (r *runner) resize() {
	if fd := int(os.Stdin.Fd()); r.command.TTY != nil && term.IsTerminal(fd) {
		ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
		defer cancel()
		// A server that cannot resize has a terminal of fixed size.
		_ = r.command.Resize(ctx, terminalSize(fd))
	}
}

// unanswered is how run ends by a signal that it could not pass on.
func unanswered(s syscall.Signal) error {
	return &runFailure{
		fmt.Sprintf("ended by %s, which the server does not pass on; the command may go on there until the server ends the session", s),
		exitSignal + int(s),
	}
}

// signalError is why a command is ended that a signal could not be passed on to.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return e.signal.String() }

// result makes the program's own end of what Wait says.
func (r *runner) result(err error) error {
	exit, ended := errors.AsType[*client.ExitError](err)
	if s, ok := errors.AsType[signalError](err); ok {
		return exitCode(exitSignal + int(s.signal))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBrokenPipe):
		return exitCode(exitSignal + int(syscall.SIGPIPE))
	case ended:
		return exitCode(exit.ExitCode & 0xFF)
	}
	return advise(err)
}

// advise makes one line of an error that says what to do about it, where that is
// known.
func advise(err error) error {
	failure := &runFailure{strings.Join(strings.Fields(err.Error()), " "), exitFailed}
	add := func(advice string) { failure.text += "; " + advice }
	switch dial, dialing := errors.AsType[*client.DialError](err); {
	case dialing:
		if advice := adviseDialing(dial); advice != "" {
			add(advice)
		}
	case errors.Is(err, exec.ErrNotFound):
		failure.code = exitNotFound
		add("install it there, or give its path")
	case errors.Is(err, os.ErrPermission):
		failure.code = exitNotAllowed
	case errors.As(err, new(*client.StartError)):
		failure.code = exitNotAllowed
	case errors.Is(err, client.ErrNoEnvironment):
		add("set CODEX_EXEC_SERVER_URL, write environments.toml, or use --url")
	case errors.As(err, new(*client.ExitMissingError)):
		add("the command may go on there until the server ends the session")
	}
	return failure
}

// adviseDialing says what to do when no connection could be made, "" if that is
// not known.
func adviseDialing(err *client.DialError) string {
	called, calling := errors.AsType[*os.SyscallError](err)
	switch {
	case err.Status == 401 || err.Status == 403:
		return "give the server's token with --token-file, or in environments.toml"
	case err.Status != 0:
		return "is this the URL of an exec-server?"
	case calling && (errors.Is(called, syscall.ECONNREFUSED) || errors.Is(called, syscall.ENOENT)):
		return "start a server there: exec-server --listen URL"
	case calling && errors.Is(called, os.ErrPermission):
		return "use the account that the server runs as"
	case errors.As(err, new(*net.DNSError)):
		return "check the name of the host"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "use ws:// for a server without TLS"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "name the certificate of its authority by SSL_CERT_FILE"
	case errors.Is(err, context.DeadlineExceeded):
		return "check the address, and what is between"
	}
	return ""
}
