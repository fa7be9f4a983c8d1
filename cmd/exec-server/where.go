package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/client/environments"
	"execserver/client/local"
)

// onThisMachine is the name of this machine for --on.
const onThisMachine = "local"

// where says on which machine a subcommand works. The zero value means the default of
// Codex's configuration.
type where struct {
	on, url, tokenFile string
	nats               natsFlags // for a URL of NATS
}

func (w *where) addFlags(f *pflag.FlagSet) {
	f.StringVar(&w.on, "on", "", "use the environment of this `NAME` in Codex's environments.toml; local is this machine; "+
		"GATEWAY/MACHINE is a machine of a gateway, and fleet/MACHINE one of $"+environments.GatewayVariable)
	f.StringVar(&w.url, "url", "", "use the server at this `URL`: ws://HOST:PORT, wss://HOST:PORT, unix:///PATH"+alsoNATS)
	f.StringVar(&w.tokenFile, "token-file", "", "read the bearer token for --url or fleet/MACHINE from this `FILE`")
	w.nats.define(f)
	for _, name := range natsFlagNames {
		f.Lookup(name).Hidden = true // few need them; docs/fleet.md has them
	}
}

// check refuses flags that make no sense.
func (w *where) check(command *cobra.Command) error {
	if err := w.checkOne(command); err != nil {
		return err
	}
	switch {
	case isNATSURL(w.url):
		if err := w.checkNATS(); err != nil {
			return &usageError{err, command}
		}
	case len(w.nats.given()) > 0:
		return &usageError{fmt.Errorf("%s is for the --url of a machine behind NATS", w.nats.given()[0][0]), command}
	case w.url != "" && !isServerURL(w.url):
		return &usageError{notServerURL(w.url), command}
	}
	return nil
}

// checkOne refuses flags that contradict each other.
func (w *where) checkOne(command *cobra.Command) error {
	// An unset variable in a script must not choose another machine.
	for _, name := range append([]string{"on", "url", "token-file"}, natsFlagNames...) {
		if flag := command.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return &usageError{fmt.Errorf("--%s is empty; give it a value, or leave it out", name), command}
		}
	}
	switch {
	case w.on != "" && w.url != "":
		return &usageError{errors.New("--on and --url exclude each other"), command}
	case w.tokenFile != "" && w.url == "" && !environments.IsFleet(w.on):
		return &usageError{errors.New("--token-file is for --url"), command}
	}
	return nil
}

// given returns the flags that name the machine, with their values.
func (w *where) given() (flags [][2]string) {
	for _, flag := range [][2]string{{"--on", w.on}, {"--url", w.url}, {"--token-file", w.tokenFile}} {
		if flag[1] != "" {
			flags = append(flags, flag)
		}
	}
	return append(flags, w.nats.given()...)
}

// isServerURL reports whether a text begins as the URL of a server does.
func isServerURL(text string) bool {
	scheme, rest, _ := strings.Cut(text, "://")
	return (scheme == "ws" || scheme == "wss" || scheme == "unix") && rest != ""
}

// isNATSURL reports whether a text begins as the URL of a machine behind NATS does.
func isNATSURL(text string) bool {
	scheme, _, isURL := strings.Cut(text, "://")
	return isURL && (scheme == "nats" || scheme == "tls" || scheme == "nats+ws" || scheme == "nats+wss")
}

// notServerURL says what the value of --url should look like, and which one a person may
// have meant. It repeats nothing that may have a secret.
func notServerURL(text string) error {
	const expected = "expected ws://HOST:PORT, wss://HOST:PORT, unix:///PATH" + alsoNATS
	if strings.ContainsAny(text, "@?") {
		return errors.New("invalid value for --url: " + expected)
	}
	scheme, rest, isURL := strings.Cut(text, "://")
	_, _, err := net.SplitHostPort(text)
	meant := ""
	switch {
	case rest != "" && scheme == "http":
		meant = "ws://" + rest
	case rest != "" && scheme == "https":
		meant = "wss://" + rest
	case strings.HasPrefix(text, "/"):
		meant = "unix://" + text
	case !isURL && err == nil:
		meant = "ws://" + text
	default:
		return invalidValue("url", text, expected)
	}
	return invalidValue("url", text, "did you mean "+meant+"?")
}

// open connects to the machine. opts are not changed.
func (w *where) open(ctx context.Context, opts *client.Options) (*client.Environment, error) {
	o := *opts
	o.TokenFile = w.tokenFile
	switch {
	case w.url != "":
		return w.dial(ctx, &o)
	case w.on == onThisMachine:
		return local.New(opts)
	case w.on == "":
		if err := needDefault(); err != nil {
			return nil, err
		}
	}
	return environments.Open(ctx, w.on, &o)
}

// dial connects to the server of --url.
func (w *where) dial(ctx context.Context, opts *client.Options) (*client.Environment, error) {
	if isNATSURL(w.url) {
		return w.dialNATS(ctx, opts)
	}
	return client.Dial(ctx, w.url, opts)
}

// needDefault returns an error that says how to name a machine, if the configuration has
// no default other than this machine: who wants that can use its own commands.
func needDefault() error {
	names, byDefault, err := environments.Names()
	if err != nil || byDefault != onThisMachine {
		return err
	}
	return fmt.Errorf("no machine is named; use --on NAME (%s) or --url URL, or set CODEX_EXEC_SERVER_URL",
		strings.Join(names, ", "))
}

// do connects to the machine and works there until work returns or a signal comes, which
// ends ctx. name is that of the subcommand.
func (w *where) do(name string, work func(ctx context.Context, env *client.Environment) error) error {
	return w.doWith(&client.Options{Name: "exec-server-" + name}, work)
}

// look is like do for a subcommand that needs no session of its own, because it lists or
// ends those of others.
func (w *where) look(name string, work func(ctx context.Context, env *client.Environment) error) error {
	return w.doWith(&client.Options{Name: "exec-server-" + name, NoSession: true}, work)
}

// doWith is do with options for the client.
func (w *where) doWith(opts *client.Options, work func(ctx context.Context, env *client.Environment) error) error {
	ignoreBrokenPipes() // the writers notice, and the session still gets its farewell
	ctx, stop := untilSignal()
	defer stop()
	env, err := w.open(ctx, opts)
	if err == nil {
		defer leave(env)
		err = work(ctx, env)
	}
	switch s, signaled := errors.AsType[signalError](context.Cause(ctx)); {
	case signaled:
		return exitCode(exitSignal + int(s.signal))
	case err == nil, errors.As(err, new(exitCode)):
		return err
	case isBrokenPipe(err):
		return exitCode(exitSignal + int(syscall.SIGPIPE))
	}
	return errors.New(advise(w.atChosen(err)))
}

// isBrokenPipe reports whether an error says that nobody reads this program's standard
// output any more.
func isBrokenPipe(err error) bool {
	failed, ok := errors.AsType[*fs.PathError](err)
	return ok && failed.Path == os.Stdout.Name() && errors.Is(err, syscall.EPIPE)
}

// untilSignal returns a context that a signal ends, with a signalError as its cause. A
// second signal ends the program.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, os.Interrupt, syscall.SIGTERM} {
		if !signal.Ignored(s) { // as under nohup
			signal.Notify(signals, s)
		}
	}
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(signalError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// closeTimeout bounds how long the program waits before it exits for a server that does
// not answer its farewell.
const closeTimeout = 5 * time.Second

// leave closes an environment before the program exits.
func leave(env *client.Environment) {
	closed := make(chan struct{})
	go func() { // if it takes too long, the program exits without it
		defer close(closed)
		_ = env.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

// meantOn returns err, which says that there is no such path or program. If word looks as if
// it named a machine, as the paths of cp do, it adds how to name one.
func meantOn(word string, err error) error {
	name, _, _ := strings.Cut(word, ":")
	names, _, problem := environments.Names()
	if problem != nil || !slices.Contains(names, name) {
		return err
	}
	return fmt.Errorf("%w; if %s means the machine, --on %[2]s names it", err, name)
}
