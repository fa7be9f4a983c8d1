package filesystem

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// A program that is killed between giving a temporary file its name and renaming
// it leaves that behind. Its name says which user made it, and while its maker
// lives it is locked: so who finds one of his own user that is not locked may
// remove it.

func temporaryName() string {
	return fmt.Sprintf(".exec-server-%d-%016x.tmp", os.Geteuid(), rand.Uint64())
}

var temporaryPattern = regexp.MustCompile(`^\.exec-server-([0-9]+)-[0-9a-f]{16}\.tmp$`)

// hold marks a temporary file as being in use until it is closed or let go. It
// reports false if somebody took the file for one that is left behind. Where the
// file system has no locks, nobody can take it for that.
func (t *temporary) hold() bool {
	fd := int(t.f.Fd())
	if _, err := retry(func() (int, error) { return 0, sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err == unix.EWOULDBLOCK {
		return false
	}
	var st unix.Stat_t
	return sys.Fstat(fd, &st) != nil || st.Nlink > 0 || t.name == ""
}

// letGo ends hold: a file that has been published is for others to lock.
func (t *temporary) letGo() { _ = sys.Flock(int(t.f.Fd()), unix.LOCK_UN) }

// How often the same directory is swept, how many are remembered, and how many of
// its names are looked at.
const (
	sweepEvery = 10 * time.Minute
	maxSwept   = 1024
	maxLooked  = 100_000
)

// swept remembers which directories were swept.
var swept = sweeps{last: map[fileKey]time.Time{}}

type sweeps struct {
	mu   sync.Mutex
	last map[fileKey]time.Time
}

// due reports whether a directory should be swept now, which it then is.
func (s *sweeps) due(dir fileKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[dir]; ok && time.Since(last) < sweepEvery {
		return false
	}
	if len(s.last) >= maxSwept {
		clear(s.last)
	}
	s.last[dir] = time.Now()
	return true
}

// sweep removes what others that were killed have left in an open directory. It is
// a courtesy: what fails is left as it is.
func sweep(dir int) {
	var st unix.Stat_t
	if sys.Fstat(dir, &st) != nil || !swept.due(fileKey{uint64(st.Dev), st.Ino}) {
		return
	}
	fd, err := place{dir: dir, name: "."}.open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	f := plainFile(fd, "directory")
	defer f.Close()
	for looked := 0; looked < maxLooked; {
		names, err := f.Readdirnames(directoryBatch)
		for _, name := range names {
			if m := temporaryPattern.FindStringSubmatch(name); m != nil && m[1] == strconv.Itoa(os.Geteuid()) {
				removeLeftover(place{dir: dir, name: name})
			}
		}
		looked += len(names)
		if err != nil {
			return
		}
	}
}

// removeLeftover removes a temporary file, unless its maker lives.
func removeLeftover(p place) {
	st, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	fd, err := p.open(unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer sys.Close(fd)
	if _, err := retry(func() (int, error) { return 0, sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err == nil && p.is(st) {
		sys.Unlinkat(p.dir, p.name, 0)
	}
}
