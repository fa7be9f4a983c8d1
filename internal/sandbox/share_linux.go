package sandbox

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedSuffix is the suffix of files in the state directory. A program that confines a
// command with a network creates one and locks it, so that the user's other servers know.
const sharedSuffix = ".networked"

// share lets the programs of one user know that another one confines a command with a
// network. Its methods must not be called concurrently.
type share struct {
	dir  string   // this program's directory
	dirs []string // the directories of other programs
	log  *slog.Logger
	held *os.File // nil if this program has announced nothing
	name string   // of held
}

// set announces whether this program confines such a command.
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

// tell creates the file of this program. The file gets its name only after it is locked.
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

// others reports whether another program confines such a command. If it cannot find out,
// it returns false.
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

// clearShared removes the files of killed programs.
func clearShared(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, "*"+sharedSuffix))
	for _, name := range names[:min(len(names), maxJournals)] {
		if !isLocked(name) {
			_ = os.Remove(name)
		}
	}
}

// isLocked reports whether the program that created a file is alive.
func isLocked(name string) bool {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	// The lock is shared, because another program may ask at the same time.
	return unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// lock locks a file for this program alone. It does not block.
func lock(file *os.File) error { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
