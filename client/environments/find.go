package environments

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"execserver/client"
)

// Entry says how the configuration reaches an environment, for programs that explain why
// it does not.
type Entry struct {
	Name   string
	Source string // the file or the variable that defines it
	URL    string // of the server; "" if Command starts it, and for this machine
	Token  string // for URL

	// Command is the program that is the server, or leads to it; nil if there is a URL,
	// and for this machine.
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
		return "", nil, fmt.Errorf("environment `%s` is not configured in %s; %s", name, c.source, c.known())
	}
	return name, &entry, nil
}

// known says which names the configuration has.
func (c *config) known() string {
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

// File returns the path of environments.toml, where there may be no file. The error says
// why there can be none.
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
