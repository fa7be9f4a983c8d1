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

// A program that is killed between naming a temporary file and renaming it leaves the
// file behind. The file's name says which user made it, and its maker locks it while it
// lives. So a server of the same user may remove the file if it is not locked.

func temporaryName() string {
	return fmt.Sprintf(".exec-server-%d-%016x.tmp", os.Geteuid(), rand.Uint64())
}

// temporaryPattern matches the names of temporary files, and finds the user in them. Its
// first use compiles it, so that the helpers in sandboxes do not pay for it.
var temporaryPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\.exec-server-([0-9]+)-[0-9a-f]{16}\.tmp$`)
})

// hold marks a temporary file as in use until it is closed or letGo is called. It reports
// false if another server took the file for a leftover. On a file system without locks,
// no server does.
func (t *temporary) hold() bool {
	fd := int(t.f.Fd())
	if _, err := retry(func() (int, error) { return 0, sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err == unix.EWOULDBLOCK {
		return false
	}
	var st unix.Stat_t
	return sys.Fstat(fd, &st) != nil || st.Nlink > 0 || t.name == ""
}

// letGo ends hold, because other programs may lock a published file.
func (t *temporary) letGo() { _ = sys.Flock(int(t.f.Fd()), unix.LOCK_UN) }

// How often the server sweeps a directory, how many directories it remembers, and how
// many names of a directory it examines.
const (
	sweepEvery  = 10 * time.Minute
	maxSwept    = 1024
	maxExamined = 100_000
)

// swept remembers which directories were swept.
var swept = sweeps{last: map[fileKey]time.Time{}}

type sweeps struct {
	mu   sync.Mutex
	last map[fileKey]time.Time
}

// due reports whether a directory should be swept now, and records that it is.
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

// sweep removes the leftovers of killed servers from an open directory. It ignores
// errors, because nothing depends on it.
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
	for examined := 0; examined < maxExamined; {
		names, err := f.Readdirnames(directoryBatch)
		for _, name := range names {
			if m := temporaryPattern().FindStringSubmatch(name); m != nil && m[1] == strconv.Itoa(os.Geteuid()) {
				removeLeftover(place{dir: dir, name: name})
			}
		}
		examined += len(names)
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
