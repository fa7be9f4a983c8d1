// Package environments opens the environments that Codex's configuration names: in
// environments.toml, or in the variable CODEX_EXEC_SERVER_URL. It also opens the machines of
// the gateways among them. Start with [Open].
package environments

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"execserver/client"
	"execserver/client/local"
	"execserver/internal/sys"
)

// urlVariable defines the only environment when there is no file.
const urlVariable = "CODEX_EXEC_SERVER_URL"

// Names with a special meaning.
const (
	localName  = "local"  // this machine
	remoteName = "remote" // the environment of urlVariable
	noName     = "none"   // nothing may be executed
)

// ErrNone reports that the configuration permits no execution: the default, or
// CODEX_EXEC_SERVER_URL, is "none".
var ErrNone = errors.New("no execution environment is configured")

// ConfigError says what is wrong with environments.toml. Its texts are those of Codex,
// which reads the same file.
type ConfigError struct{ text string }

func (e *ConfigError) Error() string { return e.text }

func configError(format string, args ...any) error {
	return &ConfigError{fmt.Sprintf(format, args...)}
}

// Open opens the environment with the given name, as Codex does. It reads environments.toml in
// $CODEX_HOME, by default ~/.codex, or, without that file, the variable CODEX_EXEC_SERVER_URL. The
// names are:
//
//   - "" for the default.
//   - "local" for commands on this machine, unless the configuration excludes it.
//   - an id in environments.toml, or "remote" for CODEX_EXEC_SERVER_URL.
//   - "GATEWAY/MACHINE", "GATEWAY/any" or "GATEWAY/label=KEY=VALUE" for a machine of a gateway (docs/fleet.md). GATEWAY is an environment whose URL is a gateway's, or "fleet" for EXEC_SERVER_GATEWAY.
//
// Tokens and timeouts of the configuration take precedence over opts. Open reads the configuration
// at each call, and may be called concurrently. It never falls back to another environment.
//
// ctx limits only connecting, not the lifetime of the Environment. The error is a *ConfigError for a
// file that Codex would not accept, ErrNone if the configuration permits no execution, or a
// *client.DialError. It is another error if the name is not configured.
func Open(ctx context.Context, name string, opts *client.Options) (*client.Environment, error) {
	c, err := loadConfig()
	if err != nil {
		return nil, err
	}
	_, entry, err := c.choose(name)
	switch {
	case err != nil:
		return nil, err
	case entry == nil:
		return local.NewSandboxed(opts)
	}
	return entry.open(ctx, c.home, opts)
}

// Names returns the names of the configured environments, and the name of the default, which is one
// of names or "none". It returns the errors of Open for the configuration. Machines of gateways are
// not listed.
func Names() (names []string, defaultName string, err error) {
	c, err := loadConfig()
	if err != nil {
		return nil, "", err
	}
	return c.names(), c.defaultName, nil
}

// Entry describes how the configuration reaches an environment, for programs that explain
// why it cannot be reached.
type Entry struct {
	Name   string
	Source string // the file or the variable that defines it
	URL    string // of the server; "" if Command starts it, and for this machine
	Token  string // for URL

	// Command is the program that is the server or connects to it; nil if there is a URL,
	// or for this machine.
	Command *exec.Cmd
	// Options have the configured timeouts, and the file with the token for the gateway of
	// the variable EXEC_SERVER_GATEWAY.
	Options client.Options

	// LocalToo says that the configuration also lets Codex use this machine.
	LocalToo bool
}

// Find returns the environment of that name, without opening it. It reads the same
// configuration as [Open], and returns the same errors.
func Find(name string) (*Entry, error) {
	c, err := loadConfig()
	if err != nil {
		return nil, err
	}
	name, entry, err := c.choose(name)
	if err != nil {
		return nil, err
	}
	found := &Entry{Name: name, Source: c.source, LocalToo: c.local}
	if c.isVariable(name) {
		found.Source = GatewayVariable
	}
	if entry == nil {
		return found, nil
	}
	entry.configure(&found.Options)
	found.Token, found.Options.Token = found.Options.Token, ""
	if entry.url != nil {
		found.URL = strings.TrimSpace(*entry.url)
	} else {
		found.Command = entry.command(c.home)
	}
	return found, nil
}

// config is a valid configuration.
type config struct {
	source      string // the file or the variable
	home        string // Codex's home directory
	defaultName string
	local       bool
	entries     []configEntry
}

// configEntry is one [[environments]].
type configEntry struct {
	id        string
	url       *string
	token     *string
	tokenFile string // what the options may replace; never in the file of Codex

	program *string
	args    []string
	env     map[string]string
	cwd     *string

	connectTimeout    *seconds
	initializeTimeout *seconds
	hasArgs, hasEnv   bool
}

func (c *config) find(name string) (configEntry, bool) {
	for _, e := range c.entries {
		if e.id == name {
			return e, true
		}
	}
	return configEntry{}, false
}

func (c *config) names() (names []string) {
	if c.local {
		names = append(names, localName)
	}
	for _, e := range c.entries {
		names = append(names, e.id)
	}
	return names
}

// choose returns the entry of a name, or nil for this machine. "" is the default.
func (c *config) choose(name string) (string, *configEntry, error) {
	if name == "" {
		name = c.defaultName
	}
	switch {
	case strings.EqualFold(name, noName):
		return "", nil, ErrNone
	case name == localName && c.local:
		return name, nil, nil
	case IsMachine(name):
		entry, err := c.machine(name)
		return name, entry, err
	}
	entry, ok := c.find(name)
	switch {
	case !ok && name == gatewayName:
		return "", nil, fmt.Errorf("environment `%s` is not configured in %s; %[1]s/MACHINE names a machine of the gateway in %[3]s", name, c.source, GatewayVariable)
	case !ok:
		return "", nil, fmt.Errorf("environment `%s` is not configured in %s; %s", name, c.source, c.listNames())
	}
	return name, &entry, nil
}

// listNames lists the names of the configuration in a sentence.
func (c *config) listNames() string {
	names := c.names()
	switch last := len(names) - 1; last {
	case -1:
		return "it has no environments"
	case 0:
		return "the only environment is " + names[0]
	default:
		return "the environments are " + strings.Join(names[:last], ", ") + " and " + names[last]
	}
}

// configure sets the options that the entry has.
func (e configEntry) configure(o *client.Options) {
	if e.token != nil && *e.token != "" {
		o.Token, o.TokenFile = *e.token, ""
	}
	if o.Token == "" && o.TokenFile == "" {
		o.TokenFile = e.tokenFile
	}
	if e.connectTimeout != nil {
		o.ConnectTimeout = e.connectTimeout.duration()
	}
	if e.initializeTimeout != nil {
		o.InitializeTimeout = e.initializeTimeout.duration()
	}
}

// File returns the path of environments.toml. The file need not exist. The error reports
// why no path can be determined.
func File() (string, error) {
	home, err := codexHome()
	return filepath.Join(home, "environments.toml"), err
}

// Check returns the error that [Open] would return for the content of environments.toml.
// path is for the error alone.
func Check(path string, text []byte) error {
	_, err := parseConfig(path, text)
	return err
}

// loadConfig reads the file or, if there is none, the variable.
func loadConfig() (*config, error) {
	path, err := File()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return configOfVariable(os.Getenv(urlVariable)), nil
	case err != nil:
		return nil, configError("cannot read %s: %s", path, sys.ErrorText(err))
	}
	c, err := parseConfig(path, text)
	if err != nil {
		return nil, err
	}
	c.home = filepath.Dir(path)
	return c, nil
}

func codexHome() (string, error) {
	home := os.Getenv("CODEX_HOME")
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the Codex home: set CODEX_HOME: %w", err)
		}
		return filepath.Join(user, ".codex"), nil
	}
	if _, err := os.Stat(home); err != nil {
		return "", fmt.Errorf("CODEX_HOME points to %q, but that path does not exist", home)
	}
	return home, nil
}

func configOfVariable(value string) *config {
	value = strings.TrimSpace(value)
	c := &config{source: urlVariable}
	switch {
	case value == "":
		c.source = "environments.toml or " + urlVariable
		c.defaultName, c.local = localName, true
	case strings.EqualFold(value, noName):
		c.defaultName = noName
	default:
		c.defaultName = remoteName
		c.entries = []configEntry{{id: remoteName, url: &value}}
	}
	return c
}

// open opens the environment of an entry.
func (e configEntry) open(ctx context.Context, home string, opts *client.Options) (*client.Environment, error) {
	var o client.Options
	if opts != nil {
		o = *opts
	}
	e.configure(&o)
	if e.url != nil {
		return client.Dial(ctx, strings.TrimSpace(*e.url), &o)
	}
	return client.Launch(ctx, e.command(home), &o)
}

// command returns the command of an entry that has a program.
func (e configEntry) command(home string) *exec.Cmd {
	command := exec.Command(*e.program, e.args...)
	command.Env = os.Environ()
	for name, value := range e.env {
		command.Env = append(command.Env, name+"="+value)
	}
	if e.cwd != nil {
		command.Dir = *e.cwd
		if !filepath.IsAbs(command.Dir) {
			command.Dir = filepath.Join(home, command.Dir)
		}
	}
	return command
}
