package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// maxAlternatives bounds the number of patterns to which the braces of one pattern expand.
const maxAlternatives = 256

// projectScheme makes a pattern relative to every root of the workspace.
const projectScheme = "codex-project-roots://"

// expandPattern finds the files that a pattern matches. It does not match links, because
// their targets can change at any time. It follows links only before the first wildcard, as
// in any path.
func (s *search) expandPattern(pattern, cwd string, roots []string, rootsErr error, depth *uint64) error {
	e := expansion{search: s, pattern: pattern, depth: math.MaxInt}
	if depth != nil {
		e.depth = int(min(*depth, math.MaxInt32))
	}
	list, err := s.alternatives(pattern)
	if err != nil {
		return err
	}
	for _, one := range list {
		bases := []string{"/"}
		rest, project := strings.CutPrefix(one, projectScheme)
		switch {
		case project && rootsErr != nil:
			return rootsErr
		case project:
			bases = roots
		case !strings.HasPrefix(one, "/") && cwd == "":
			return errors.New("file system sandbox context with dynamic permissions requires cwd")
		case !strings.HasPrefix(one, "/"):
			bases = []string{cwd}
		}
		fixed, parts, err := split(rest)
		if err != nil {
			return fmt.Errorf("the pattern %q %w", pattern, err)
		}
		for _, base := range bases {
			e.snapshots = make(map[searchStep]snapshot)
			if err := e.walk(filepath.Join(base, fixed), parts, 0); err != nil {
				return err
			}
			if err := e.rereadChanged(); err != nil {
				return err
			}
		}
	}
	return nil
}

// split splits a pattern without braces: into the path before the first part with a
// wildcard, but at least before the last part, and the parts for the names after it.
func split(pattern string) (fixed string, parts []part, err error) {
	for _, text := range strings.Split(pattern, "/") {
		switch text {
		case "", ".":
		case "..":
			return "", nil, errors.New("leads upwards")
		case "**":
			parts = append(parts, part{any: true})
		default:
			re, err := compile(text)
			if err != nil {
				return "", nil, fmt.Errorf("cannot be understood: %w", err)
			}
			parts = append(parts, part{text: text, re: re})
		}
	}
	for len(parts) > 1 && !parts[0].any && !strings.ContainsAny(parts[0].text, `*?[\`) {
		fixed, parts = filepath.Join(fixed, parts[0].text), parts[1:]
	}
	if len(parts) > 0 && parts[len(parts)-1].any {
		re, err := compile("*")
		if err != nil {
			return "", nil, err
		}
		parts = append(parts, part{text: "*", re: re})
	}
	return fixed, parts, nil
}

// part matches one name or, with any, any number of directories.
type part struct {
	any  bool
	text string
	re   *regexp.Regexp
}

// expansion is the search for the files that one pattern matches.
type expansion struct {
	*search
	pattern   string
	depth     int // how many directories "**" may match
	snapshots map[searchStep]snapshot
	repeating bool
}

// walk searches below dir for the rest of the pattern. deep is how many directories "**"
// has matched already.
func (e *expansion) walk(dir string, parts []part, deep int) error {
	if len(parts) == 0 {
		e.match(dir)
		return nil
	}
	if e.reaches != nil && !e.reaches(dir) {
		return nil
	}
	if e.timedOut() {
		return e.stop(dir)
	}
	if parts[0].any {
		if err := e.walk(dir, parts[1:], 0); err != nil {
			return err
		}
	}
	entries, err := e.readChanged(searchStep{dir, len(parts), deep}, parts)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) {
			return nil // a program with the same rights could not read it either
		}
		return fmt.Errorf("expand the pattern %q: %w", e.pattern, err)
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case e.timedOut():
			return e.stop(dir)
		case entry.Type()&fs.ModeSymlink != 0:
		case parts[0].any:
			if entry.IsDir() && deep < e.depth {
				err = e.walk(name, parts, deep+1)
			}
		case parts[0].re.MatchString(entry.Name()):
			err = e.walk(name, parts[1:], 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// timedOut reports whether the deadline of the search has passed.
func (e *expansion) timedOut() bool { return time.Now().After(e.deadline) }

// stop ends the search in a directory, and hides the directory as a whole.
func (e *expansion) stop(dir string) error {
	switch {
	case !e.mustShow(dir):
		e.match(dir)
	case !e.repeating: // otherwise it was read once
		return fmt.Errorf("the patterns, the last of them %q, take longer than %s to expand; set glob_scan_max_depth", e.pattern, patternTimeout)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// alternatives expands the braces of a pattern.
func (s *search) alternatives(pattern string) ([]string, error) {
	if s.budget -= len(pattern) + 1; s.budget < 0 {
		return nil, fmt.Errorf("the patterns of the sandbox are longer than %d bytes, with everything that their braces stand for", maxPatterns)
	}
	var choices []string
	deep, first, start := 0, 0, 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			if _, size := bracket(pattern[i:]); size > 0 {
				i += size - 1
			}
		case '{':
			if deep++; deep == 1 {
				first, start = i, i+1
			}
		case ',':
			if deep == 1 {
				choices, start = append(choices, pattern[start:i]), i+1
			}
		case '}':
			if deep == 0 {
				continue // literal
			}
			if deep--; deep > 0 {
				continue
			}
			var list []string
			for _, choice := range append(choices, pattern[start:i]) {
				more, err := s.alternatives(pattern[:first] + choice + pattern[i+1:])
				if err != nil {
					return nil, err
				}
				if list = append(list, more...); len(list) > maxAlternatives {
					return nil, fmt.Errorf("the braces of a pattern stand for more than %d patterns", maxAlternatives)
				}
			}
			return list, nil
		}
	}
	if deep > 0 {
		return nil, fmt.Errorf("a brace is not closed in the pattern %q", pattern)
	}
	return []string{pattern}, nil
}

// compile converts one part of a pattern to a regular expression. An unclosed bracket is
// literal.
func compile(part string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(part); i++ {
		switch c := part[i]; c {
		case '*':
			b.WriteString(`.*`)
		case '?':
			b.WriteString(`.`)
		case '[':
			set, size := bracket(part[i:])
			if size == 0 {
				b.WriteString(`\[`)
				continue
			}
			b.WriteString(set)
			i += size - 1
		case '\\':
			if i+1 < len(part) {
				i++
			}
			b.WriteString(regexp.QuoteMeta(part[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(part[i : i+1]))
		}
	}
	b.WriteString(`\z`)
	return regexp.Compile(b.String())
}

// bracket converts the character set at the start of a pattern to a part of a regular
// expression. It returns the set's length in the pattern, or 0 if it has no end.
func bracket(pattern string) (set string, size int) {
	first, no := 1, ""
	if len(pattern) > 1 && (pattern[1] == '!' || pattern[1] == '^') {
		first, no = 2, "^"
	}
	if len(pattern) <= first {
		return "", 0
	}
	length := strings.IndexAny(pattern[first+1:], "]/") + 1 // the first character of the set may be a bracket itself
	if length == 0 || pattern[first+length] == '/' {
		return "", 0
	}
	escaped := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(pattern[first : first+length])
	return "[" + no + escaped + "]", first + length + 1
}
