package transcript

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// recorded is a message or an end of a connection that came during a block.
type recorded struct {
	link    *link
	data    []byte
	message map[string]any
	met     *pending // nil: it was not expected
	end     *EndedError
}

// edit replaces lines of a scenario.
type edit struct {
	from, to int
	lines    []string
}

// rewrite replaces the expectations of the block that were not met. Lines that were met
// stay as they are.
func (r *runner) rewrite(next int) {
	e := edit{from: r.blockAt, to: max(next, r.blockAt)}
	lines := r.scenario.lines
	for e.to > e.from && (strings.TrimSpace(lines[e.to-1]) == "" || strings.HasPrefix(lines[e.to-1], "#")) {
		e.to--
	}
	for _, line := range lines[e.from:e.to] {
		if strings.HasPrefix(line, "#") {
			e.lines = append(e.lines, line)
		}
	}
	used := make(map[*pending]bool)
	for _, rec := range r.recorded {
		switch {
		case rec.met != nil && used[rec.met]:
		case rec.met != nil:
			used[rec.met] = true
			e.lines = append(e.lines, lines[rec.met.step.at])
		case rec.end != nil:
			e.lines = append(e.lines, fmt.Sprintf("%s<- closed %d %q", rec.link.name, rec.end.Code, rec.end.Reason))
		case rec.data != nil:
			text := r.spell(rec.link, rec.data)
			if data, ok := rec.message[dataMember].(string); ok {
				head, _, _ := splitData(rec.data) // decoded before
				text = fmt.Sprintf("data %q %s", data, r.spell(rec.link, head))
			}
			e.lines = append(e.lines, rec.link.name+"<- "+text)
		}
	}
	r.edits = append(r.edits, e)
}

// apply changes the lines of a scenario.
func (s *Scenario) apply(edits []edit) {
	slices.Reverse(edits)
	for _, e := range edits {
		s.lines = slices.Replace(s.lines, e.from, e.to, e.lines...)
	}
}

var (
	encoded = regexp.MustCompile(`"(chunk|dataBase64)":"([A-Za-z0-9+/=]*)"`)
	greeted = regexp.MustCompile(`"sessionId":"[^"]*","environmentInfo":\{.*\}\}\}$`)
)

// spell formats a message as a person would write it.
func (r *runner) spell(l *link, data []byte) string {
	text := encoded.ReplaceAllStringFunc(string(data), func(m string) string {
		parts := encoded.FindStringSubmatch(m)
		plain, err := base64.StdEncoding.DecodeString(parts[2])
		switch {
		case err != nil || len(plain) > 200:
			return m
		case !utf8.Valid(plain) || strings.ContainsFunc(string(plain), func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' }):
			return fmt.Sprintf(`"%s":"$hex(%x)"`, parts[1], plain)
		}
		literal, err := json.Marshal("$text(" + string(plain) + ")")
		if err != nil {
			return m
		}
		return `"` + parts[1] + `":` + string(literal)
	})
	text = greeted.ReplaceAllLiteralString(text, `"sessionId":"$session`+l.name+`","environmentInfo":"$any"}}`)
	for _, name := range []string{"uri", "dir"} {
		if value, ok := r.vars[name].(string); ok && value != "" {
			text = strings.ReplaceAll(text, value, "${"+name+"}")
		}
	}
	for name, value := range r.vars {
		if v, ok := value.(string); ok && len(v) > 8 {
			text = strings.ReplaceAll(text, v, "${"+name+"}")
		}
	}
	return text
}
