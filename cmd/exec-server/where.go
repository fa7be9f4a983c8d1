package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/client/environments"
	"execserver/client/local"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
)

// onThisMachine is the name of this machine for --on.
const onThisMachine = "local"

// where says on which machine a subcommand works. The zero value means the default of
// Codex's configuration.
type where struct {
	on, url, tokenFile, serverUser string
}

func (w *where) addFlags(f *pflag.FlagSet) {
	f.StringVar(&w.on, "on", "", "use the environment of this `NAME` in Codex's environments.toml; local is this machine; "+
		"GATEWAY/MACHINE is a machine of a gateway, and fleet/MACHINE one of $"+environments.GatewayVariable)
	f.StringVar(&w.url, "url", "", "use the server at this `URL`: ws://HOST:PORT, wss://HOST:PORT or unix:///PATH")
	f.StringVar(&w.tokenFile, "token-file", "", "read the bearer token for --url or fleet/MACHINE from this `FILE`")
	serve.DefineServerUser(f, &w.serverUser)
}

// check refuses flags that make no sense.
func (w *where) check(command *cobra.Command) error {
	if err := w.checkOne(command); err != nil {
		return err
	}
	if w.url != "" && !cli.IsServerURL(w.url) {
		return cli.NewUsageError(notServerURL(w.url), command)
	}
	return nil
}

// checkOne refuses flags that contradict each other.
func (w *where) checkOne(command *cobra.Command) error {
	// An unset variable in a script must not choose another machine.
	for _, name := range []string{"on", "url", "token-file", "server-user"} {
		if flag := command.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return cli.NewUsageError(fmt.Errorf("--%s is empty; give it a value, or leave it out", name), command)
		}
	}
	switch {
	case w.on != "" && w.url != "":
		return cli.NewUsageError(errors.New("--on and --url exclude each other"), command)
	case w.tokenFile != "" && w.url == "" && !environments.IsFleet(w.on):
		return cli.NewUsageError(errors.New("--token-file is for --url"), command)
	}
	return nil
}

// given returns the flags that name the machine, with their values.
func (w *where) given() (flags [][2]string) {
	for _, flag := range [][2]string{{"--on", w.on}, {"--url", w.url}, {"--token-file", w.tokenFile}, {"--server-user", w.serverUser}} {
		if flag[1] != "" {
			flags = append(flags, flag)
		}
	}
	return flags
}

// notServerURL says what the value of --url should look like, and which one a person may
// have meant. It repeats nothing that may have a secret.
func notServerURL(text string) error {
	const expected = "expected ws://HOST:PORT, wss://HOST:PORT or unix:///PATH"
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
		return cli.InvalidValue("url", text, expected)
	}
	return cli.InvalidValue("url", text, "did you mean "+meant+"?")
}

// open connects to the machine. opts are not changed.
func (w *where) open(ctx context.Context, opts *client.Options) (*client.Environment, error) {
	o := *opts
	o.TokenFile, o.ServerUser = w.tokenFile, w.serverUser
	switch {
	case w.url != "":
		return client.Dial(ctx, w.url, &o)
	case w.on == onThisMachine:
		return local.New(opts)
	case w.on == "":
		if err := needDefault(); err != nil {
			return nil, err
		}
	}
	return environments.Open(ctx, w.on, &o)
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
	serve.IgnoreBrokenPipes() // the writers notice, and the session still gets its farewell
	ctx, stop := cli.UntilSignal()
	defer stop()
	env, err := w.open(ctx, opts)
	if err == nil {
		defer cli.Leave(env)
		err = work(ctx, env)
	}
	switch s, signaled := errors.AsType[cli.SignalError](context.Cause(ctx)); {
	case signaled:
		return cli.ExitCode(cli.Signaled + int(s.Signal))
	case err == nil, errors.As(err, new(cli.ExitCode)):
		return err
	case cli.IsBrokenPipe(err):
		return cli.ExitCode(cli.Signaled + int(syscall.SIGPIPE))
	}
	return errors.New(cli.ErrorLine(w.atChosen(err)))
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

// label names a machine for people, in a few words and without secrets.
func label(w *where) string {
	switch u, err := url.Parse(w.url); {
	case w.on != "":
		return w.on
	case w.url == "" || err != nil:
		return "the server"
	case u.Host != "":
		return u.Host
	default:
		return u.Path
	}
}
