package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// variables are the values that a scenario has captured or was given.
type variables map[string]any

var (
	variableName = regexp.MustCompile(`^\$([a-z][A-Za-z0-9]*)$`)
	repeat       = regexp.MustCompile(`\$\{repeat [^}]*\}`)
	placeholder  = regexp.MustCompile(`\$\{[^}]*\}`)
)

func decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("something follows the first value")
	}
	return v, nil
}

// expand replaces each ${} in a string.
func (vars variables) expand(s string) (string, error) {
	var failed error
	s = placeholder.ReplaceAllStringFunc(s, func(m string) string {
		name := m[2 : len(m)-1]
		if rest, ok := strings.CutPrefix(name, "repeat "); ok {
			count, text, _ := strings.Cut(rest, " ")
			n, err := strconv.Atoi(count)
			if err != nil {
				failed = err
			}
			return strings.Repeat(text, n)
		}
		switch v := vars[name].(type) {
		case string:
			return v
		case json.Number:
			return v.String()
		}
		failed = fmt.Errorf("variable %q has no value here", name)
		return m
	})
	return s, failed
}

// text returns the wire form of a string in a transcript.
func (vars variables) text(s string) (string, error) {
	if m := variableName.FindStringSubmatch(s); m != nil {
		s = "${" + m[1] + "}"
	}
	inner, call := "", ""
	for _, name := range []string{"text", "hex"} {
		if rest, ok := strings.CutPrefix(s, "$"+name+"("); ok && strings.HasSuffix(rest, ")") {
			inner, call = rest[:len(rest)-1], name
		}
	}
	if call == "" {
		return vars.expand(s)
	}
	inner, err := vars.expand(inner)
	if err != nil {
		return "", err
	}
	data := []byte(inner)
	if call == "hex" {
		data, err = hex.DecodeString(inner)
	}
	return base64.StdEncoding.EncodeToString(data), err
}

// jsonString finds well-formed string literals.
var jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// message returns the message to send for a client line. It expands strings and leaves
// everything else as it is written, well-formed or not.
func (vars variables) message(line string) (string, error) {
	line, failed := vars.outside(line)
	line = jsonString.ReplaceAllStringFunc(line, func(literal string) string {
		if !strings.Contains(literal, "$") {
			return literal
		}
		var s string
		if json.Unmarshal([]byte(literal), &s) != nil {
			return literal
		}
		if m := variableName.FindStringSubmatch(s); m != nil {
			if _, ok := vars[m[1]]; !ok {
				failed = fmt.Errorf("variable %q has no value here", m[1])
			}
			value, _ := json.Marshal(vars[m[1]])
			return string(value)
		}
		s, err := vars.text(s)
		if err != nil {
			failed = err
		}
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(s) // strings always encode
		return strings.TrimSpace(b.String())
	})
	return line, failed
}

// outside expands ${repeat} outside of strings.
func (vars variables) outside(line string) (string, error) {
	if !repeat.MatchString(jsonString.ReplaceAllString(line, "")) {
		return line, nil
	}
	return vars.expand(line)
}

// matcher compares messages with the lines of a transcript.
type matcher struct {
	vars      variables
	reference bool // the released server: see Options.Reference
	captured  variables
}

// lacking are the members that older clients read and that the released server does not
// send.
var lacking = map[string]bool{"protocolVersion": true, "accepted": true}

// exitMembers are the members of an exit record except exitCode. They count only if a
// scenario names them, because most scenarios are about something else and other servers
// need not send them.
var exitMembers = map[string]bool{"signal": true, "coreDumped": true, "endedBy": true, "oomKilled": true, "rusage": true}

// match returns a description of the first difference, or "" if there is none.
func (m *matcher) match(want, got any, at string) string {
	switch want := want.(type) {
	case string:
		return m.matchString(want, got, at)
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: got %s, want an object", at, show(got))
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			value, ok := object[name]
			if !ok && m.reference && (lacking[name] || exitMembers[name]) {
				continue
			}
			if !ok {
				return fmt.Sprintf("%s: member %q is missing", at, name)
			}
			if m.reference && (name == "seq" || name == "message" && at == ".error") {
				continue
			}
			if diff := m.match(want[name], value, at+"."+name); diff != "" {
				return diff
			}
		}
		_, exited := object["exitCode"]
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if _, ok := want[name]; !ok && !(exited && exitMembers[name]) {
				return fmt.Sprintf("%s: member %q is too many: %s", at, name, show(object[name]))
			}
		}
		return ""
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fmt.Sprintf("%s: got %s, want %d elements", at, show(got), len(want))
		}
		for i := range want {
			if diff := m.match(want[i], list[i], fmt.Sprintf("%s[%d]", at, i)); diff != "" {
				return diff
			}
		}
		return ""
	}
	if want != got {
		return fmt.Sprintf("%s: got %s, want %s", at, show(got), show(want))
	}
	return ""
}

func (m *matcher) matchString(want string, got any, at string) string {
	number, isNumber := got.(json.Number)
	text, isText := got.(string)
	switch want {
	case "$any":
		return ""
	case "$int":
		if _, err := number.Int64(); isNumber && err == nil {
			return ""
		}
		return fmt.Sprintf("%s: got %s, want an integer", at, show(got))
	case "$string":
		if isText {
			return ""
		}
		return fmt.Sprintf("%s: got %s, want a string", at, show(got))
	}
	if name := variableName.FindStringSubmatch(want); name != nil {
		known, ok := m.vars[name[1]]
		if !ok {
			known, ok = m.captured[name[1]]
		}
		if !ok {
			m.captured[name[1]] = got
			return ""
		}
		if !reflect.DeepEqual(known, got) {
			return fmt.Sprintf("%s: got %s, want %s as before", at, show(got), show(known))
		}
		return ""
	}
	parts := strings.Split(want, "${*}")
	for i, part := range parts {
		expanded, err := m.vars.text(part)
		if err != nil {
			return fmt.Sprintf("%s: %s", at, err)
		}
		parts[i] = expanded
	}
	if isText && wild(parts, text) {
		return ""
	}
	return fmt.Sprintf("%s: got %s, want %s", at, show(got), show(strings.Join(parts, "${*}")))
}

// wild reports whether s consists of the parts with anything between them.
func wild(parts []string, s string) bool {
	if len(parts) == 1 {
		return s == parts[0]
	}
	for i, part := range parts {
		switch {
		case i == 0:
			if !strings.HasPrefix(s, part) {
				return false
			}
			s = s[len(part):]
		case i == len(parts)-1:
			return strings.HasSuffix(s, part)
		default:
			at := strings.Index(s, part)
			if at < 0 {
				return false
			}
			s = s[at+len(part):]
		}
	}
	return true
}

func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const most = 300
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}
