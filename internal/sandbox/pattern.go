package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bounds of what the patterns of a policy may find.
const (
	maxMatches     = 10_000
	patternTimeout = 2 * time.Second
)

// projectScheme makes a pattern relative to every root of the workspace.
const projectScheme = "codex-project-roots://"

// expandPattern lists what there is that a pattern matches. Links are not: they
// can be made to lead anywhere at any time.
func expandPattern(pattern, cwd string, roots []string, rootsErr error, depth *uint64) ([]string, error) {
	bases := []string{"/"}
	rest, project := strings.CutPrefix(pattern, projectScheme)
	switch {
	case project && rootsErr != nil:
		return nil, rootsErr
	case project:
		bases = roots
	case !strings.HasPrefix(pattern, "/") && cwd == "":
		return nil, errors.New("file system sandbox context with dynamic permissions requires cwd")
	case !strings.HasPrefix(pattern, "/"):
		bases = []string{cwd}
	}
	e := expansion{pattern: pattern, deadline: time.Now().Add(patternTimeout), depth: math.MaxInt}
	if depth != nil {
		e.depth = int(min(*depth, math.MaxInt32))
	}
	var parts []string
	for _, part := range strings.Split(rest, "/") {
		if part == ".." {
			return nil, fmt.Errorf("the pattern %q leads upwards", pattern)
		}
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	for _, base := range bases {
		if err := e.walk(base, parts, 0); err != nil {
			return nil, err
		}
	}
	return e.found, nil
}

// expansion is the search for what one pattern matches.
type expansion struct {
	pattern  string
	deadline time.Time
	depth    int // how far "**" goes down
	found    []string
}

// walk looks below dir for the rest of the pattern; deep is how far "**" has
// gone already.
func (e *expansion) walk(dir string, parts []string, deep int) error {
	if len(parts) == 0 {
		if len(e.found) == maxMatches {
			return fmt.Errorf("the pattern %q matches more than %d files", e.pattern, maxMatches)
		}
		e.found = append(e.found, dir)
		return nil
	}
	if time.Now().After(e.deadline) {
		return fmt.Errorf("the pattern %q takes longer than %s to expand; set glob_scan_max_depth", e.pattern, patternTimeout)
	}
	part, any := parts[0], parts[0] == "**"
	if any {
		if len(parts) == 1 {
			parts = append(parts, "*")
		}
		if err := e.walk(dir, parts[1:], 0); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || !isDir(dir) {
			return nil // nothing that a program with our rights could read either
		}
		return fmt.Errorf("expand the pattern %q: %w", e.pattern, err)
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case entry.Type()&fs.ModeSymlink != 0:
		case any:
			if entry.IsDir() && deep < e.depth {
				err = e.walk(name, parts, deep+1)
			}
		case matches(part, entry.Name()):
			err = e.walk(name, parts[1:], 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// matches matches a name with one part of a pattern. A bracket that is not
// closed stands for itself.
func matches(part, name string) bool {
	ok, err := filepath.Match(part, name)
	if err != nil {
		ok, _ = filepath.Match(strings.ReplaceAll(part, "[", `\[`), name)
	}
	return ok
}
