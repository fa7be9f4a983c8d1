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

// ErrNone says that the configuration allows no execution.
var ErrNone = errors.New("no execution environment is configured")

// ConfigError says what is wrong with environments.toml. Its texts are those of Codex,
// which reads the same file.
type ConfigError struct{ text string }

func (e *ConfigError) Error() string { return e.text }

func configError(format string, args ...any) error {
	return &ConfigError{fmt.Sprintf(format, args...)}
}

// Open opens the environment of that name, as Codex does. It reads environments.toml in
// $CODEX_HOME, by default ~/.codex, or, without that file, the variable
// CODEX_EXEC_SERVER_URL, whose environment is "remote". "local" is this process, unless
// the configuration leaves it out, and "" is the default. A name with a slash is a machine of
// a gateway: GATEWAY/MACHINE, GATEWAY/any, or GATEWAY/label=KEY=VALUE, where GATEWAY is an
// environment whose URL leads to a gateway, or "fleet" for that of the variable
// EXEC_SERVER_GATEWAY (docs/fleet.md). Tokens and timeouts of the
// configuration take precedence over opts. Open may be called concurrently, and reads the
// configuration at each call.
//
// ctx bounds the connecting, not the Environment. The error is a *ConfigError for a file
// that Codex would not accept either, ErrNone if the configuration allows no execution, a
// *client.DialError, or another error that says what is not configured.
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
		return local.New(opts)
	}
	return entry.open(ctx, c.home, opts)
}

// Names returns the names of the environments that Open can open, and that of the default:
// one of names, or "none". It returns the errors of Open for the configuration.
func Names() (names []string, byDefault string, err error) {
	c, err := loadConfig()
	if err != nil {
		return nil, "", err
	}
	return c.names(), c.defaultName, nil
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
