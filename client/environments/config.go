package environments

import (
	"fmt"
	"math"
	"net/url"
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

// parseConfig reads and checks environments.toml. The library parses it; the checks are
// here, so that the errors are those of Codex.
func parseConfig(path string, text []byte) (*config, error) {
	if !utf8.Valid(text) {
		return nil, configError("failed to read environment config `%s`: stream did not contain valid UTF-8", path)
	}
	var root map[string]any
	if err := toml.Unmarshal(text, &root); err != nil {
		return nil, configError("failed to parse environment config `%s`: %s", path, err)
	}
	t := &table{values: root}
	c := &config{source: path}
	t.only("default", "include_local", "environments")
	defaultName := t.text("default")
	c.local = t.boolean("include_local", true)
	for _, value := range t.list("environments") {
		c.entries = append(c.entries, parseEntry(t, value))
	}
	if t.err != nil {
		return nil, configError("failed to parse environment config `%s`: %s", path, t.err)
	}
	for i, e := range c.entries {
		if err := e.check(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(c.entries[:i], func(o configEntry) bool { return o.id == e.id }) {
			return nil, configError("environment id `%s` is duplicated", e.id)
		}
	}
	return c, c.setDefault(defaultName)
}

func parseEntry(t *table, value any) configEntry {
	values, ok := value.(map[string]any)
	if !ok {
		t.fail("environments", "invalid type: %s, expected struct EnvironmentToml", kind(value))
		return configEntry{}
	}
	sub := &table{values: values, path: "environments", err: t.err}
	sub.only("id", "skills", "url", "auth_bearer_token", "program", "args", "env", "cwd",
		"connect_timeout_sec", "initialize_timeout_sec")
	e := configEntry{
		url: sub.text("url"), token: sub.text("auth_bearer_token"), program: sub.text("program"),
		args: sub.texts("args"), env: sub.textMap("env"), cwd: sub.text("cwd"),
		connectTimeout: sub.seconds("connect_timeout_sec"), initializeTimeout: sub.seconds("initialize_timeout_sec"),
	}
	_, e.hasArgs = values["args"]
	_, e.hasEnv = values["env"]
	if skills, ok := values["skills"]; ok && kind(skills) != "map" {
		sub.fail("skills", "invalid type: %s, expected struct ScopedSkillsConfig", kind(skills))
	}
	if id := sub.text("id"); id != nil {
		e.id = *id
	} else {
		sub.failHere("missing field `id`")
	}
	t.err = sub.err
	return e
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
		return configError("invalid value for exec-server WebSocket header `authorization`")
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
	_, rest, _ := strings.Cut(text, "://")
	switch {
	case text == "":
		return configError("environment url cannot be empty")
	case !strings.HasPrefix(text, "ws://") && !strings.HasPrefix(text, "wss://"):
		return configError("environment url `%s` must use ws:// or wss://", text)
	case rest == "":
		return configError("environment url `%s` is invalid: HTTP format error: empty string", text)
	}
	u, err := url.Parse(text)
	switch {
	case strings.ContainsAny(text, " <>\"\\^`{|}"):
		return configError("environment url `%s` is invalid: HTTP format error: invalid uri character", text)
	case err != nil:
		return configError("environment url `%s` is invalid: HTTP format error: invalid authority", text)
	case u.Host == "":
		return configError("environment url `%s` is invalid: HTTP format error: invalid format", text)
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

// table reads the members of a table and keeps the first error with its place.
type table struct {
	values map[string]any
	path   string
	err    error
}

// fail records an error of a member.
func (t *table) fail(name, format string, args ...any) {
	if t.path != "" {
		name = t.path + "." + name
	}
	t.note(fmt.Errorf(format+"\nin `%s`", append(args, name)...))
}

// failHere records an error of the table itself.
func (t *table) failHere(text string) {
	if t.path != "" {
		text += "\nin `" + t.path + "`"
	}
	t.note(fmt.Errorf("%s", text))
}

func (t *table) note(err error) {
	if t.err == nil {
		t.err = err
	}
}

// only refuses members other than those named.
func (t *table) only(names ...string) {
	unknown := ""
	for name := range t.values {
		if !slices.Contains(names, name) && (unknown == "" || name < unknown) {
			unknown = name
		}
	}
	if unknown != "" {
		t.failHere(fmt.Sprintf("unknown field `%s`, expected one of `%s`", unknown, strings.Join(names, "`, `")))
	}
}

func (t *table) text(name string) *string {
	value, ok := t.values[name]
	if !ok {
		return nil
	}
	s, ok := value.(string)
	if !ok {
		t.fail(name, "invalid type: %s, expected a string", kind(value))
	}
	return &s
}

func (t *table) boolean(name string, absent bool) bool {
	value, ok := t.values[name]
	if !ok {
		return absent
	}
	b, ok := value.(bool)
	if !ok {
		t.fail(name, "invalid type: %s, expected a boolean", kind(value))
	}
	return b
}

func (t *table) list(name string) []any {
	switch value := t.values[name].(type) {
	case nil:
		return nil
	case []any:
		return value
	case []map[string]any:
		list := make([]any, len(value))
		for i, v := range value {
			list[i] = v
		}
		return list
	default:
		t.fail(name, "invalid type: %s, expected a sequence", kind(value))
		return nil
	}
}

func (t *table) texts(name string) (texts []string) {
	for _, value := range t.list(name) {
		s, ok := value.(string)
		if !ok {
			t.fail(name, "invalid type: %s, expected a string", kind(value))
		}
		texts = append(texts, s)
	}
	return texts
}

func (t *table) textMap(name string) map[string]string {
	value, ok := t.values[name]
	if !ok {
		return nil
	}
	values, ok := value.(map[string]any)
	if !ok {
		t.fail(name, "invalid type: %s, expected a map", kind(value))
		return nil
	}
	texts := make(map[string]string, len(values))
	sub := &table{values: values, path: strings.TrimPrefix(t.path+"."+name, "."), err: t.err}
	for name := range values {
		if s := sub.text(name); s != nil {
			texts[name] = *s
		}
	}
	t.err = sub.err
	return texts
}

// maxSeconds is the longest duration of Codex.
const maxSeconds = 1 << 63

func (t *table) seconds(name string) *seconds {
	value, ok := t.values[name]
	if !ok {
		return nil
	}
	var f float64
	switch value := value.(type) {
	case int64:
		f = float64(value)
	case float64:
		f = value
	default:
		t.fail(name, "invalid type: %s, expected f64", kind(value))
	}
	switch {
	case math.IsNaN(f), f >= 2*maxSeconds:
		t.fail(name, "cannot convert float seconds to Duration: value is either too big or NaN")
	case f < 0:
		t.fail(name, "cannot convert float seconds to Duration: value is negative")
	}
	s := seconds(min(f, float64(math.MaxInt64/int64(time.Second))))
	return &s
}

// kind names the type of a value as Codex's errors do.
func kind(value any) string {
	switch value := value.(type) {
	case string:
		return fmt.Sprintf("string %q", value)
	case int64:
		return fmt.Sprintf("integer `%d`", value)
	case float64:
		return fmt.Sprintf("floating point `%v`", value)
	case bool:
		return fmt.Sprintf("boolean `%t`", value)
	case []any, []map[string]any:
		return "sequence"
	}
	return "map"
}
