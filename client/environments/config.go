package environments

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// seconds is a duration in the file.
type seconds float64

// duration returns at least a nanosecond, because 0 means the default elsewhere.
func (s seconds) duration() time.Duration {
	return max(1, time.Duration(float64(s)*float64(time.Second)))
}

// file is the text of environments.toml. A nil member is absent.
type file struct {
	Default      *string     `toml:"default"`
	IncludeLocal *bool       `toml:"include_local"`
	Environments []fileEntry `toml:"environments"`
}

type fileEntry struct {
	ID     *string `toml:"id"`
	Skills any     `toml:"skills"` // a table of no meaning here

	URL            *string  `toml:"url"`
	Token          *string  `toml:"auth_bearer_token"`
	ConnectTimeout *float64 `toml:"connect_timeout_sec"`

	Program *string   `toml:"program"`
	Args    *[]string `toml:"args"`
	Env     any       `toml:"env"` // a table; the library ignores other values for a map
	Cwd     *string   `toml:"cwd"`

	InitializeTimeout *float64 `toml:"initialize_timeout_sec"`
}

// parseConfig reads and checks environments.toml. It refuses what Codex refuses.
func parseConfig(path string, text []byte) (*config, error) {
	refuse := func(format string, args ...any) error {
		return configError("cannot read %s: %s", path, fmt.Sprintf(format, args...))
	}
	if !utf8.Valid(text) {
		return nil, refuse("it is not valid UTF-8")
	}
	var f file
	meta, err := toml.Decode(string(text), &f)
	if err != nil {
		return nil, refuse("%s", err)
	}
	for _, key := range meta.Keys() {
		if !known(key) {
			return nil, refuse("unknown key %s", key)
		}
	}
	c := &config{source: path, local: f.IncludeLocal == nil || *f.IncludeLocal}
	for i, e := range f.Environments {
		entry, err := e.entry()
		if err != nil {
			return nil, refuse("environments[%d]: %s", i, err)
		}
		c.entries = append(c.entries, entry)
	}
	for i, e := range c.entries {
		if err := e.check(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(c.entries[:i], func(o configEntry) bool { return o.id == e.id }) {
			return nil, configError("environment id `%s` is duplicated", e.id)
		}
	}
	return c, c.setDefault(f.Default)
}

// known reports whether the file may have a key. The library compares names without case,
// and Codex does not.
func known(key toml.Key) bool {
	t := reflect.TypeFor[file]()
	for _, name := range key {
		i := slices.IndexFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Tag.Get("toml") == name })
		if i < 0 {
			return false
		}
		if t = t.Field(i).Type; t.Kind() != reflect.Slice {
			return true
		}
		t = t.Elem()
	}
	return true
}

// entry checks the types that TOML does not know.
func (e fileEntry) entry() (entry configEntry, err error) {
	if e.ID == nil {
		return entry, errors.New("id is missing")
	}
	entry = configEntry{
		id: *e.ID, url: e.URL, token: e.Token, program: e.Program, cwd: e.Cwd,
		hasArgs: e.Args != nil, hasEnv: e.Env != nil,
	}
	if e.Args != nil {
		entry.args = *e.Args
	}
	if entry.env, err = texts(e.Env); err != nil {
		return entry, fmt.Errorf("env %w", err)
	}
	if _, ok := e.Skills.(map[string]any); !ok && e.Skills != nil {
		return entry, errors.New("skills is not a table")
	}
	if entry.connectTimeout, err = duration(e.ConnectTimeout); err != nil {
		return entry, fmt.Errorf("connect_timeout_sec %w", err)
	}
	if entry.initializeTimeout, err = duration(e.InitializeTimeout); err != nil {
		return entry, fmt.Errorf("initialize_timeout_sec %w", err)
	}
	return entry, nil
}

// texts checks a table of strings.
func texts(value any) (map[string]string, error) {
	table, ok := value.(map[string]any)
	if !ok && value != nil {
		return nil, errors.New("is not a table")
	}
	texts := make(map[string]string, len(table))
	for name, value := range table {
		if texts[name], ok = value.(string); !ok {
			return nil, fmt.Errorf("has %s, which is not a string", name)
		}
	}
	return texts, nil
}

// duration checks a number of seconds. Those that Codex does not accept are an error.
func duration(s *float64) (*seconds, error) {
	switch {
	case s == nil:
		return nil, nil
	case !(*s >= 0 && *s < 1<<64):
		return nil, fmt.Errorf("is not a number of seconds: %v", *s)
	}
	return new(seconds(min(*s, float64(math.MaxInt64/int64(time.Second))))), nil
}

// check returns the first error of an entry.
func (e configEntry) check() error {
	if err := checkID(e.id); err != nil {
		return err
	}
	switch {
	case e.program == nil && (e.hasArgs || e.hasEnv || e.cwd != nil):
		return configError("environment `%s` args, env, and cwd require program", e.id)
	case (e.url == nil) == (e.program == nil):
		return configError("environment `%s` must set exactly one of url or program", e.id)
	case e.token != nil && e.url == nil:
		return configError("environment `%s` auth_bearer_token requires url", e.id)
	case e.connectTimeout != nil && e.url == nil:
		return configError("environment `%s` connect_timeout_sec requires url", e.id)
	case e.program != nil && strings.TrimSpace(*e.program) == "":
		return configError("environment `%s` program cannot be empty", e.id)
	case e.url == nil:
		return nil
	}
	if err := checkURL(strings.TrimSpace(*e.url)); err != nil {
		return err
	}
	if e.token != nil && strings.ContainsFunc(*e.token, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
		return configError("environment `%s` auth_bearer_token has control characters", e.id)
	}
	return nil
}

const maxIDLength = 64

// IsName reports whether environments.toml can have an environment of that name.
func IsName(name string) bool { return checkID(name) == nil }

func checkID(id string) error {
	switch {
	case id == "":
		return configError("environment id cannot be empty")
	case strings.TrimSpace(id) != id:
		return configError("environment id `%s` must not contain surrounding whitespace", id)
	case id == localName, strings.EqualFold(id, noName):
		return configError("environment id `%s` is reserved", id)
	case strings.ContainsFunc(id, notInID):
		return configError("environment id `%s` must contain only ASCII letters, numbers, '-' or '_'", id)
	case len(id) > maxIDLength:
		return configError("environment id `%s` cannot be longer than %d characters", id, maxIDLength)
	}
	return nil
}

func notInID(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return configError("environment url cannot be empty")
	case !strings.HasPrefix(text, "ws://") && !strings.HasPrefix(text, "wss://"):
		return configError("environment url `%s` must use ws:// or wss://", text)
	case err != nil || u.Host == "" || strings.ContainsAny(text, " <>\"\\^`{|}"):
		return configError("environment url `%s` is invalid; write ws://HOST:PORT or wss://HOST:PORT", text)
	}
	return nil
}

// setDefault checks and applies the default.
func (c *config) setDefault(name *string) error {
	c.defaultName = noName
	if c.local {
		c.defaultName = localName
	}
	if name == nil {
		return nil
	}
	id := strings.TrimSpace(*name)
	_, known := c.find(id)
	switch {
	case id == "":
		return configError("default environment id cannot be empty")
	case !known && !strings.EqualFold(id, noName) && (id != localName || !c.local):
		return configError("default environment `%s` is not configured", id)
	}
	c.defaultName = id
	return nil
}
