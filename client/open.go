package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"execserver/internal/errno"
)

// urlVariable names the one environment that there is without a file.
const urlVariable = "CODEX_EXEC_SERVER_URL"

// Names that have a meaning of their own.
const (
	localName  = "local"  // this machine
	remoteName = "remote" // what urlVariable says
	noName     = "none"   // nothing is to be executed
)

// ConfigError says what is wrong with environments.toml. Its texts are those of
// Codex, which reads the same file.
type ConfigError struct{ text string }

func (e *ConfigError) Error() string { return "exec-server protocol error: " + e.text }

func configError(format string, args ...any) error {
	return &ConfigError{fmt.Sprintf(format, args...)}
}

// Open opens the environment that the configuration calls by a name, as Codex
// does: in environments.toml in $CODEX_HOME, by default ~/.codex, or, without
// that file, in the variable CODEX_EXEC_SERVER_URL, whose environment is called
// "remote". "local" is this machine, unless the configuration leaves it out, and
// "" what the configuration calls its default. The error is a *ConfigError for
// a file that Codex would not take either, ErrNoEnvironment when nothing is to
// be executed, or that of Dial and Launch. What the configuration says of tokens
// and timeouts goes before opts.
func Open(ctx context.Context, name string, opts *Options) (*Environment, error) {
	c, err := loadConfig()
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = c.defaultName
	}
	switch {
	case strings.EqualFold(name, noName):
		return nil, ErrNoEnvironment
	case name == localName && c.local:
		return Local(opts)
	}
	entry, ok := c.find(name)
	if !ok {
		return nil, fmt.Errorf("environment `%s` is not configured in %s; there is %s", name, c.source, c.names())
	}
	return entry.open(ctx, c.home, opts)
}

// config is the configuration, valid.
type config struct {
	source      string // where it is from
	home        string // of Codex
	defaultName string
	local       bool
	entries     []configEntry
}

// configEntry is one [[environments]].
type configEntry struct {
	id    string
	url   *string
	token *string

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

func (c *config) names() string {
	var names []string
	if c.local {
		names = append(names, localName)
	}
	for _, e := range c.entries {
		names = append(names, e.id)
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// loadConfig reads the file, or in its absence the variable.
func loadConfig() (*config, error) {
	home, err := codexHome()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(home, "environments.toml")
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return configOfVariable(os.Getenv(urlVariable)), nil
	case err != nil:
		return nil, configError("failed to read environment config `%s`: %s", path, errno.Text(err))
	}
	c, err := parseConfig(path, text)
	if err != nil {
		return nil, err
	}
	c.home = home
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
func (e configEntry) open(ctx context.Context, home string, opts *Options) (*Environment, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if e.token != nil && *e.token != "" {
		o.Token, o.TokenFile = *e.token, ""
	}
	if e.connectTimeout != nil {
		o.ConnectTimeout = e.connectTimeout.duration()
	}
	if e.initializeTimeout != nil {
		o.InitializeTimeout = e.initializeTimeout.duration()
	}
	if e.url != nil {
		return Dial(ctx, strings.TrimSpace(*e.url), &o)
	}
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
	return Launch(ctx, command, &o)
}
