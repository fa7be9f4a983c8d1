package cli

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
)

// ThisMachine is the name of this machine for --on.
const ThisMachine = "local"

// Machine holds the flags that name the machine a command works on. The zero value means the
// default of Codex's configuration.
type Machine struct {
	On, URL, TokenFile, ServerUser string
}

// AddFlags defines the flags.
func (m *Machine) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&m.On, "on", "", "work on this machine: a `NAME` of environments.toml, local, or GATEWAY/MACHINE of a fleet")
	f.StringVar(&m.URL, "url", "", "work on the server at this `URL`: ws://HOST:PORT, wss://HOST:PORT or unix:///PATH")
	f.StringVar(&m.TokenFile, "token-file", "", "read the bearer token for --url or fleet/MACHINE from this `FILE`")
	DefineServerUser(f, &m.ServerUser)
}

// Check refuses invalid flags.
func (m *Machine) Check(command *cobra.Command) error {
	if err := m.CheckExclusive(command); err != nil {
		return err
	}
	if m.URL != "" && !IsServerURL(m.URL) {
		return NewUsageError(notServerURL(m.URL), command)
	}
	return nil
}

// CheckExclusive refuses flags that are empty or exclude each other.
func (m *Machine) CheckExclusive(command *cobra.Command) error {
	// An unset variable in a script must not choose another machine.
	for _, name := range []string{"on", "url", "token-file", "server-user"} {
		if flag := command.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return NewUsageError(fmt.Errorf("--%s is empty; give it a value, or leave it out", name), command)
		}
	}
	switch {
	case m.On != "" && m.URL != "":
		return NewUsageError(errors.New("--on and --url exclude each other"), command)
	case m.TokenFile != "" && m.URL == "" && !environments.IsFleet(m.On):
		return NewUsageError(errors.New("--token-file is for --url"), command)
	}
	return nil
}

// DefineServerUser defines the flag that names the user who may receive this client's secrets.
func DefineServerUser(f *pflag.FlagSet, name *string) {
	f.StringVar(name, "server-user", "", "send a token without TLS to a server on this machine also if it runs as this `USER` (default: only as your own user or root)")
}

// given returns the flags that are set, with their values.
func (m *Machine) given() (flags [][2]string) {
	for _, flag := range [][2]string{{"--on", m.On}, {"--url", m.URL}, {"--token-file", m.TokenFile}, {"--server-user", m.ServerUser}} {
		if flag[1] != "" {
			flags = append(flags, flag)
		}
	}
	return flags
}

// notServerURL returns the error for an invalid --url, with the URL that was probably meant.
// The error never quotes a part of the URL that may hold a secret.
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
		return InvalidValue("url", text, expected)
	}
	return InvalidValue("url", text, "did you mean "+meant+"?")
}

// Open connects to the machine. It does not change opts.
func (m *Machine) Open(ctx context.Context, opts *client.Options) (*client.Environment, error) {
	o := *opts
	o.TokenFile, o.ServerUser = m.TokenFile, m.ServerUser
	switch {
	case m.URL != "":
		return client.Dial(ctx, m.URL, &o)
	case m.On == ThisMachine:
		return local.New(opts)
	case m.On == "":
		if err := RequireDefault(); err != nil {
			return nil, err
		}
	}
	return environments.Open(ctx, m.On, &o)
}

// OpenSandboxed is like Open, but this machine, too, runs commands in a sandbox. It takes longer there
// than Open, because it first tests the mechanisms.
func (m *Machine) OpenSandboxed(ctx context.Context, opts *client.Options) (*client.Environment, error) {
	if m.On == ThisMachine {
		return local.NewSandboxed(opts)
	}
	return m.Open(ctx, opts)
}

// RequireDefault returns an error if the configuration has no default other than this machine: a
// command that is meant for another one must not run here by mistake.
func RequireDefault() error {
	names, byDefault, err := environments.Names()
	if err != nil || byDefault != ThisMachine {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == ThisMachine })
	return fmt.Errorf("no machine is named; use --on NAME (%s) or --url URL, or add a default with exec-server codex-config add",
		strings.Join(append(names, ThisMachine+" for this machine"), ", "))
}

// DescribeDefault returns the name of the machine if no flag names it, and what names it. Otherwise
// it returns "".
func (m *Machine) DescribeDefault() string {
	if m.On != "" || m.URL != "" {
		return ""
	}
	entry, err := environments.Find("")
	if err != nil {
		return ""
	}
	if file, err := environments.File(); err == nil && entry.Source == file {
		return entry.Name + ", the default of " + Printable(file)
	}
	return "the server of " + entry.Source + ", " + Printable(WithoutSecrets(entry.URL))
}

// Do connects to the machine and calls work with a context that ends at the first signal. name
// is that of the command. Do returns the error with which the program ends.
func (m *Machine) Do(name string, work func(ctx context.Context, env *client.Environment) error) error {
	return m.DoWith(&client.Options{Name: "exec-server-" + name}, work)
}

// Query is Do for a command that needs no session of its own, because it lists or ends the
// sessions of other clients.
func (m *Machine) Query(name string, work func(ctx context.Context, env *client.Environment) error) error {
	return m.DoWith(&client.Options{Name: "exec-server-" + name, NoSession: true}, work)
}

// DoWith is Do with options for the client.
func (m *Machine) DoWith(opts *client.Options, work func(ctx context.Context, env *client.Environment) error) error {
	IgnoreBrokenPipes() // writes fail instead, and the session is still closed
	ctx, stop := UntilSignal()
	defer stop()
	env, err := m.Open(ctx, opts)
	if err == nil {
		defer Leave(env)
		err = work(ctx, env)
	}
	switch s, signaled := errors.AsType[SignalError](context.Cause(ctx)); {
	case signaled:
		return ExitCode(Signaled + int(s.Signal))
	case err == nil, errors.As(err, new(ExitCode)):
		return err
	case IsBrokenPipe(err):
		return ExitCode(Signaled + int(syscall.SIGPIPE))
	}
	return errors.New(ErrorLine(m.ExplainChoice(err)))
}

// SuggestMachine adds a hint to err, the error for a path or program that does not exist, if
// word begins with the name of a machine, as the paths of cp do.
func SuggestMachine(word string, err error) error {
	name, _, _ := strings.Cut(word, ":")
	names, _, problem := environments.Names()
	if problem != nil || !slices.Contains(names, name) {
		return err
	}
	return fmt.Errorf("%w; if %s means the machine, --on %[2]s names it", err, name)
}

// Label returns a short name of the machine for people, without secrets.
func (m *Machine) Label() string {
	switch u, err := url.Parse(m.URL); {
	case m.On != "":
		return m.On
	case m.URL == "" || err != nil:
		return "the server"
	case u.Host != "":
		return u.Host
	default:
		return u.Path
	}
}

// Port returns the port of a URL, or the default of its scheme.
func Port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "wss" || u.Scheme == "https":
		return "443"
	case strings.HasPrefix(u.Scheme, "socks"):
		return "1080"
	}
	return "80"
}
