package sandbox

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A file is hidden by a mount on it. When somebody outside puts another file in its
// place, as editors and programs that rotate tokens do, the kernel takes the mount
// away in the sandboxes that run, and what is there then can be read. So where a
// directory holds nothing but secrets, the directory is hidden.

// secrets are what every sandbox hides. All methods may be called concurrently.
type secrets struct {
	paths  func() []string // of files and directories
	beside func() []string // of files that may be in the same directories
	stay   []string        // directories that are not hidden: there is more to them than what they hold
	log    *slog.Logger

	mu     sync.Mutex
	own    map[string]bool // directories that have held nothing but secrets once
	warned map[string]bool // of files
}

func newSecrets(opts *Options, log *slog.Logger) *secrets {
	none := func() []string { return nil }
	s := &secrets{
		paths: none, beside: none, log: log,
		own: make(map[string]bool), warned: make(map[string]bool),
	}
	if opts.Secrets != nil {
		s.paths = opts.Secrets
	}
	if opts.Trusted != nil {
		s.beside = opts.Trusted
	}
	for _, find := range []func() (string, error){os.Getwd, os.UserHomeDir} {
		dir, err := find()
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			s.stay = append(s.stay, real)
		}
	}
	return s
}

// directories returns those that are the secrets' own at this moment. One stays
// theirs: the file that is about to take the place of a secret is one, too.
func (s *secrets) directories() (dirs []string) {
	given := absolutePaths(s.paths())
	known := make(map[string]bool)
	for _, path := range slices.Concat(given, absolutePaths(s.beside())) {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			known[real] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range given {
		info, err := os.Stat(path)
		regular := err == nil && info.Mode().IsRegular()
		places, links := placesOf(path)
		for _, dir := range slices.Concat(places, links) {
			if s.own[dir] || regular && s.isOwn(dir, known, 0) {
				s.own[dir] = true
				dirs = append(dirs, dir)
			}
		}
		shared := slices.ContainsFunc(places, func(dir string) bool { return !s.own[dir] })
		if regular && shared && !s.warned[path] {
			s.warned[path] = true
			s.log.Warn("give the secret a directory of its own, because a sandboxed command that already runs can read a replacement", "file", path)
		}
	}
	return dirs
}

// placesOf returns the directories that hold a file, under its name and under its
// real one, and those that hold the other links on the way to it. What is in /proc
// is nobody's to replace.
func placesOf(path string) (places, links []string) {
	var r resolver
	named, w := r.walk(filepath.Dir(path)), r.walk(path)
	for _, dir := range []string{named.real, filepath.Dir(w.real)} {
		if !within(dir, "/proc") {
			places = append(places, dir)
		}
	}
	for _, link := range w.links {
		if dir := filepath.Dir(link.Path); !slices.Contains(places, dir) {
			links = append(links, dir)
		}
	}
	return places, links
}

// Bounds of what is looked at to know whether a directory is a secret's own.
const (
	maxBeside      = 64
	maxBesideDepth = 3
)

// isOwn reports whether a directory of this user, or root, holds known files and
// other versions of them, what leads to those, and nothing else.
func (s *secrets) isOwn(dir string, known map[string]bool, depth int) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || !isOwn(info) && !isRoots(info) {
		return false
	}
	if slices.ContainsFunc(s.stay, func(path string) bool { return within(path, dir) }) {
		return false
	}
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	entries, err := f.ReadDir(maxBeside)
	if err != nil || len(entries) == maxBeside {
		return false
	}
	belongs := func(entry fs.DirEntry) bool {
		path := filepath.Join(dir, entry.Name())
		real, err := filepath.EvalSymlinks(path)
		switch {
		case err != nil:
			return false
		case known[real]:
			return true
		case entry.Type().IsRegular():
			return slices.ContainsFunc(entries, func(of fs.DirEntry) bool {
				return known[filepath.Join(dir, of.Name())] && isVersion(entry.Name(), of.Name())
			})
		}
		return depth < maxBesideDepth && s.isOwn(real, known, depth+1)
	}
	return !slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return !belongs(entry) })
}

// isVersion reports whether a name is one that programs give to what a file was, or
// will be, such as token~, .token.swp and token.new.
func isVersion(name, file string) bool {
	rest, ok := strings.CutPrefix(strings.TrimLeft(name, ".#"), strings.TrimLeft(file, ".#"))
	return ok && (rest == "" || strings.ContainsRune(".-_~#", rune(rest[0])))
}

func absolutePaths(paths []string) (absolute []string) {
	for _, path := range paths {
		if path, err := filepath.Abs(path); err == nil {
			absolute = append(absolute, path)
		}
	}
	return absolute
}
