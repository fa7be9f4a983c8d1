package sandbox

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedSuffix is that of files in the state directory. A program that confines
// something with a network has one, and holds a lock of it, so that other servers of
// the user know.
const sharedSuffix = ".networked"

// share is how programs of one user tell each other that they confine something
// with a network. Its methods are not to be called concurrently.
type share struct {
	dir  string   // where this program tells it
	dirs []string // where others may
	log  *slog.Logger
	held *os.File // nil: nothing is told
	name string   // of held
}

// set tells others whether something is confined.
func (s *share) set(confines bool) {
	switch {
	case confines == (s.held != nil):
	case !confines:
		_ = os.Remove(s.name)
		_ = s.held.Close()
		s.held = nil
	default:
		if err := s.tell(); err != nil {
			s.log.Warn("other servers of this user cannot know that a sandbox with a network is in use", "error", err)
		}
	}
}

// tell makes the file of this program. It has its name once it is locked.
func (s *share) tell() error {
	file, err := os.CreateTemp(s.dir, "*.new")
	if err != nil {
		return err
	}
	s.name = strings.TrimSuffix(file.Name(), ".new") + sharedSuffix
	err = lock(file)
	if err == nil {
		err = os.Rename(file.Name(), s.name)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		_ = file.Close()
		return err
	}
	s.held = file
	return nil
}

// others reports whether another program confines something. Where it cannot find
// out, it takes it that none does.
func (s *share) others() bool {
	for _, dir := range s.dirs {
		names, _ := filepath.Glob(filepath.Join(dir, "*"+sharedSuffix))
		for _, name := range names[:min(len(names), maxJournals)] {
			if (s.held == nil || name != s.name) && isLocked(name) {
				return true
			}
		}
	}
	return false
}

// clearShared removes the files of programs that were killed.
func clearShared(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, "*"+sharedSuffix))
	for _, name := range names[:min(len(names), maxJournals)] {
		if !isLocked(name) {
			_ = os.Remove(name)
		}
	}
}

// isLocked reports whether the program that has made a file lives.
func isLocked(name string) bool {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	return lock(file) == unix.EWOULDBLOCK
}

// lock locks a file for this program alone, without waiting.
func lock(file *os.File) error { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
