package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Limits of the search for files that patterns match, and of the files that are hidden
// one by one. Beyond them the server hides whole directories: a command starts even if a
// program has filled its workspace, and sees nothing that it must not see.
const (
	patternTimeout = 2 * time.Second
	maxPatterns    = 1 << 20 // bytes of all patterns, without braces
	maxMasks       = 20_000
	maxDirMasks    = 2_000 // in one directory
)

// search collects the files that the patterns of one policy match.
type search struct {
	deadline time.Time
	room     int                               // bytes of patterns that may still come
	stay     []string                          // directories that are never hidden as a whole: roots, and the one in which the command starts
	found    map[string]map[string]fs.FileInfo // by directory, and name in there
	moved    bool                              // something moved during the search, so a file found may be gone
	lost     error                             // a file found could not be examined any more
}

func newSearch(stay ...string) *search {
	s := &search{deadline: time.Now().Add(patternTimeout), room: maxPatterns, found: make(map[string]map[string]fs.FileInfo)}
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

// mustStay reports whether a directory leads to something that must not be hidden.
func (s *search) mustStay(dir string) bool {
	return slices.ContainsFunc(s.stay, func(path string) bool { return within(path, dir) })
}

// match adds the file at a path.
func (s *search) match(path string) {
	switch info, err := os.Lstat(path); {
	case err == nil:
		s.add(path, info)
	case errors.Is(err, fs.ErrNotExist):
		s.lost = err
	}
}

func (s *search) add(path string, info fs.FileInfo) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	names := s.found[dir]
	if names == nil {
		names = make(map[string]fs.FileInfo)
		s.found[dir] = names
	}
	if len(names) <= maxMasks { // more are not needed to know that there are too many
		names[name] = info
	}
}

// dropGone forgets a file that is gone from its place but was found at another one. A
// file at neither place is fs.ErrNotExist.
func (s *search) dropGone() error {
	there := make(map[uint64][]fs.FileInfo) // by inode
	gone := make(map[string]fs.FileInfo)
	for dir, names := range s.found {
		for name, was := range names {
			path := filepath.Join(dir, name)
			if info, err := os.Lstat(path); err == nil {
				there[inode(info)] = append(there[inode(info)], info)
			} else {
				gone[path] = was
			}
		}
	}
	for path, was := range gone {
		same := func(info fs.FileInfo) bool { return os.SameFile(was, info) }
		if !slices.ContainsFunc(there[inode(was)], same) {
			return &fs.PathError{Op: "look at", Path: path, Err: fs.ErrNotExist}
		}
		delete(s.found[filepath.Dir(path)], filepath.Base(path))
	}
	return nil
}

// paths returns what to hide: the files found, or the directories that hold many of them.
func (s *search) paths() ([]string, error) {
	type directory struct {
		path  string
		masks int
	}
	var list []string
	var dirs []directory
	total := 0 // number of paths
	if s.lost != nil {
		return nil, s.lost
	}
	if s.moved {
		if err := s.dropGone(); err != nil {
			return nil, err
		}
	}
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
