package sandbox

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Bounds of the search for what patterns match, and of what is hidden one by one.
// Beyond them whole directories are hidden: a command is started although
// something has filled its workspace, and sees nothing that it should not.
const (
	patternTimeout = 2 * time.Second
	maxMasks       = 20_000
	maxDirMasks    = 2_000 // in one directory
)

// search gathers what the patterns of one policy match.
type search struct {
	deadline time.Time
	stay     []string                   // what is not hidden whatever it holds: roots, and where the command begins
	found    map[string]map[string]bool // names, by directory
}

func newSearch(stay ...string) *search {
	s := &search{deadline: time.Now().Add(patternTimeout), found: make(map[string]map[string]bool)}
	for _, path := range stay {
		if path == "" {
			continue
		}
		s.stay = append(s.stay, filepath.Clean(path))
		if real, err := filepath.EvalSymlinks(path); err == nil {
			s.stay = append(s.stay, real)
		}
	}
	return s
}

// mustStay reports whether a directory leads to something that must stay.
func (s *search) mustStay(dir string) bool {
	return slices.ContainsFunc(s.stay, func(path string) bool { return within(path, dir) })
}

func (s *search) add(path string) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	names := s.found[dir]
	if names == nil {
		names = make(map[string]bool)
		s.found[dir] = names
	}
	if len(names) <= maxMasks { // more are not needed to know that they are too many
		names[name] = true
	}
}

// paths are what is to be hidden: what was found, or directories that hold much
// of it.
func (s *search) paths() ([]string, error) {
	type directory struct {
		path  string
		masks int
	}
	var list []string
	var dirs []directory
	total := 0 // paths
	for path, names := range s.found {
		if len(names) > maxDirMasks && !s.mustStay(path) {
			list = append(list, path)
			total++
			continue
		}
		dirs = append(dirs, directory{path, len(names)})
		total += len(names)
	}
	slices.SortFunc(dirs, func(a, b directory) int { return cmp.Compare(b.masks, a.masks) })
	for _, dir := range dirs {
		if total > maxMasks && !s.mustStay(dir.path) {
			list = append(list, dir.path)
			total -= dir.masks - 1
			continue
		}
		for name := range s.found[dir.path] {
			list = append(list, filepath.Join(dir.path, name))
		}
	}
	if len(list) > maxMasks {
		return nil, fmt.Errorf("the patterns match more than %d files, most of them in %s, which cannot be hidden as a whole; "+
			"remove them, or deny a directory that holds them", maxMasks, dirs[0].path)
	}
	return list, nil
}
