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
// one by one. Beyond them the server hides whole directories, so that a command can start even
// if a program has filled its workspace with matching files.
const (
	patternTimeout = 2 * time.Second
	maxPatterns    = 1 << 20 // bytes of all patterns, without braces
	maxMasks       = 20_000
	maxDirMasks    = 2_000 // in one directory
)

// search collects the files that the patterns of one policy match.
type search struct {
	reaches  func(dir string) bool // whether to search in a directory; nil: in all
	deadline time.Time
	budget   int                               // bytes of patterns that may still come
	visible  []string                          // directories that are never hidden as a whole: roots, and the one in which the command starts
	found    map[string]map[string]fs.FileInfo // by directory, and name in there
	moved    bool                              // something moved during the search, so a file found may be gone
	lost     error                             // a file found disappeared
}

func newSearch(stay ...string) *search {
	s := &search{deadline: time.Now().Add(patternTimeout), budget: maxPatterns, found: make(map[string]map[string]fs.FileInfo)}
	for _, path := range stay {
		if path == "" {
			continue
		}
		s.visible = append(s.visible, filepath.Clean(path))
		if real, err := filepath.EvalSymlinks(path); err == nil {
			s.visible = append(s.visible, real)
		}
	}
	return s
}

// mustShow reports whether a directory contains something that must not be hidden.
func (s *search) mustShow(dir string) bool {
	return slices.ContainsFunc(s.visible, func(path string) bool { return within(path, dir) })
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

// dropGone drops the old path of a file that was found again at another path. A file that
// exists at neither is fs.ErrNotExist.
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
			return &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
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
		if len(names) > maxDirMasks && !s.mustShow(path) {
			list = append(list, path)
			total++
			continue
		}
		dirs = append(dirs, directory{path, len(names)})
		total += len(names)
	}
	slices.SortFunc(dirs, func(a, b directory) int { return cmp.Compare(b.masks, a.masks) })
	for _, dir := range dirs {
		if total > maxMasks && !s.mustShow(dir.path) {
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

// While a pattern is being expanded, a file may move from a directory that was not read
// yet to one that was. A single pass would miss it. So the expansion reads the
// directories that have changed again. A program that keeps moving files changes them
// again and again; then the files found in any of the reads count.

// visit is a directory to read for the rest of a pattern.
type searchStep struct {
	dir   string
	parts int // the number of parts of the pattern that are left
	deep  int // the number of directories that "**" has matched already
}

// reading is the result of a visit.
type snapshot struct {
	parts []part
	info  fs.FileInfo // of the directory, before it was read
	at    time.Time
}

const (
	maxReadings = 4
	// coarse exceeds the lag of the kernel's clock for file changes, and the time that it
	// takes to continue. A directory that changed so shortly before it was read may
	// change again without getting another time.
	timestampLag = 20 * time.Millisecond
)

// readChanged reads a directory, unless the earlier result still holds.
func (e *expansion) readChanged(v searchStep, parts []part) ([]fs.DirEntry, error) {
	info, err := os.Stat(v.dir)
	if err != nil {
		return nil, err
	}
	if old, ok := e.snapshots[v]; ok && old.current(info) {
		return nil, nil
	}
	one := snapshot{parts: parts, info: info, at: time.Now()}
	entries, err := os.ReadDir(v.dir)
	if err == nil {
		e.snapshots[v] = one
	}
	return entries, err
}

// current reports whether a directory has not changed since it was read.
func (l snapshot) current(now fs.FileInfo) bool {
	changed := changeTime(now)
	return os.SameFile(l.info, now) && changeTime(l.info).Equal(changed) && l.at.Sub(changed) > timestampLag
}

// rereadChanged reads the directories that have changed again. When a directory
// disappears, its parent has changed.
func (e *expansion) rereadChanged() error {
	defer func() { e.repeating = false }()
	for range maxReadings - 1 {
		now := make(map[string]fs.FileInfo)
		var changed []searchStep
		for v, l := range e.snapshots {
			info, ok := now[v.dir]
			if !ok {
				info, _ = os.Stat(v.dir)
				now[v.dir] = info
			}
			if info != nil && !l.current(info) {
				changed = append(changed, v)
			}
		}
		if len(changed) == 0 || time.Now().After(e.deadline) {
			return nil
		}
		e.repeating, e.moved = true, true
		for _, v := range changed {
			if err := e.walk(v.dir, e.snapshots[v].parts, v.deep); err != nil {
				return err
			}
		}
	}
	return nil
}
