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

// A mount hides a file. When a program outside replaces the file, as editors and programs
// that rotate tokens do, the kernel removes the mount in running sandboxes, and their
// commands can read the new file. So where a directory holds only secrets, the server
// hides the directory.

// secrets are the files that every sandbox hides. All methods may be called concurrently.
type secrets struct {
	paths   func() []string // of files and directories
	trusted func() []string // of other files that may be in the same directories
	visible []string        // directories that are not hidden, because they have another purpose
	log     *slog.Logger

	mu     sync.Mutex
	own    map[string]bool // directories that have held only secrets before
	warned map[string]bool // of files
}

func newSecrets(opts *Options, log *slog.Logger) *secrets {
	none := func() []string { return nil }
	s := &secrets{
		paths: none, trusted: none, log: log,
		own: make(map[string]bool), warned: make(map[string]bool),
	}
	if opts.Secrets != nil {
		s.paths = opts.Secrets
	}
	if opts.Trusted != nil {
		s.trusted = opts.Trusted
	}
	for _, find := range []func() (string, error){os.Getwd, os.UserHomeDir} {
		dir, err := find()
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			s.visible = append(s.visible, real)
		}
	}
	return s
}

// directories returns the directories that hold only secrets. A directory stays in the
// list, because a file that will replace a secret is a secret, too.
func (s *secrets) directories() (dirs []string) {
	given := absolutePaths(s.paths())
	known := make(map[string]bool)
	for _, path := range slices.Concat(given, absolutePaths(s.trusted())) {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			known[real] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range given {
		info, err := os.Stat(path)
		regular := err == nil && info.Mode().IsRegular()
		places, links := directoriesOf(path)
		for _, dir := range slices.Concat(places, links) {
			if s.own[dir] || regular && s.isOwn(dir, known, 0) {
				s.own[dir] = true
				dirs = append(dirs, dir)
			}
		}
		shared := slices.ContainsFunc(places, func(dir string) bool { return !s.own[dir] })
		if regular && shared && !s.warned[path] && !slices.ContainsFunc(given, func(of string) bool { return isOlder(path, of) }) {
			s.warned[path] = true
			s.log.Warn("give the secret a directory of its own, because a sandboxed command that already runs can read a replacement", "file", path)
		}
	}
	return dirs
}

// directoriesOf returns the directories that contain a file by its name and by its real
// name, and those that contain the other links on its path. It leaves out /proc, in which no
// file can be replaced.
func directoriesOf(path string) (places, links []string) {
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

// Limits of the search that decides whether a directory holds only secrets.
const (
	maxOwnEntries = 64
	maxOwnDepth   = 3
)

// isOwn reports whether a directory of this user or root holds only known files, other
// versions of them, and links and directories that lead to those.
func (s *secrets) isOwn(dir string, known map[string]bool, depth int) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || !isOwn(info) && !isRoots(info) {
		return false
	}
	if slices.ContainsFunc(s.visible, func(path string) bool { return within(path, dir) }) {
		return false
	}
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	entries, err := f.ReadDir(maxOwnEntries)
	if err != nil || len(entries) == maxOwnEntries {
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
		return depth < maxOwnDepth && s.isOwn(real, known, depth+1)
	}
	return !slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return !belongs(entry) })
}

// isVersion reports whether a name is one that programs give to an old or a new version
// of a file, such as token~, .token.swp and token.new.
func isVersion(name, file string) bool {
	rest, ok := strings.CutPrefix(strings.TrimLeft(name, ".#"), strings.TrimLeft(file, ".#"))
	return ok && (rest == "" || strings.ContainsRune(".-_~#", rune(rest[0])))
}

// isOlder reports whether a file is another version of a secret in the same directory.
// The warning about the secret covers it.
func isOlder(path, of string) bool {
	return path != of && filepath.Dir(path) == filepath.Dir(of) && isVersion(filepath.Base(path), filepath.Base(of))
}

func absolutePaths(paths []string) (absolute []string) {
	for _, path := range paths {
		if path, err := filepath.Abs(path); err == nil {
			absolute = append(absolute, path)
		}
	}
	return absolute
}
