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

// temporary is a file that is being written. Where the file system allows, it has no name
// until it is published, so a killed server leaves nothing behind.
type temporary struct {
	f    *os.File
	dir  int
	name string // "" while it has no name
}

func newTemporary(dir int, perm uint32) (*temporary, error) {
	sweep(dir)
	if haveProc() {
		fd, err := pathAt{dirfd: dir, name: "."}.open(unix.O_TMPFILE|unix.O_WRONLY, perm)
		if err == nil {
			return &temporary{f: newFile(fd, "temporary file"), dir: dir}, nil
		}
		if err != unix.EOPNOTSUPP && err != unix.EISDIR && err != unix.EINVAL && err != unix.ENOENT {
			return nil, err
		}
	}
	for {
		name := temporaryName()
		fd, err := pathAt{dirfd: dir, name: name}.open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, perm)
		if err == nil {
			t := &temporary{f: newFile(fd, name), dir: dir, name: name}
			if t.lock() {
				return t, nil
			}
			t.f.Close() // the server that locks it removes it
			continue
		}
		if err != unix.EEXIST {
			return nil, err
		}
	}
}

// publish gives the file its name. Without replace it fails with EEXIST if the name
// exists.
func (t *temporary) publish(target pathAt, replace bool) error {
	if t.name == "" && !replace {
		return t.link(target.name)
	}
	if t.name == "" {
		t.lock() // before anybody can see it
	}
	for t.name == "" {
		name := temporaryName()
		switch err := t.link(name); err {
		case nil:
			t.name = name
		case unix.EEXIST:
		default:
			return err
		}
	}
	var flags uint
	if !replace {
		flags = unix.RENAME_NOREPLACE
	}
	err := renameat2(t.dir, t.name, target.dirfd, target.name, flags)
	if !replace && (err == unix.EINVAL || err == unix.ENOSYS) { // the file system does not support flags
		err = linkat(t.dir, t.name, target.dirfd, target.name, 0)
		if err == nil {
			t.unlock()
			return nil // discard removes the other name
		}
	}
	if err == nil {
		t.name = ""
		t.unlock()
	}
	return err
}

func (t *temporary) link(name string) error {
	return linkat(unix.AT_FDCWD, fdPath(int(t.f.Fd())), t.dir, name, unix.AT_SYMLINK_FOLLOW)
}

// discard closes the file, and removes it if it was not published.
func (t *temporary) discard() {
	t.f.Close()
	if t.name != "" {
		sys.Unlinkat(t.dir, t.name, 0)
	}
}

// Tests replace these functions, because some file systems lack them.
var (
	linkat    = unix.Linkat
	renameat2 = unix.Renameat2
)

// A program that is killed between naming a temporary file and renaming it leaves the
// file behind. The file's name contains the user's number, and the program locks it while it
// lives. So a server of the same user may remove the file if it is not locked.

func temporaryName() string {
	return fmt.Sprintf(".exec-server-%d-%016x.tmp", os.Geteuid(), rand.Uint64())
}

// temporaryPattern matches the names of temporary files, and finds the user in them. Its
// first use compiles it, so that the helpers in sandboxes do not pay for it.
var temporaryPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\.exec-server-([0-9]+)-[0-9a-f]{16}\.tmp$`)
})

// lock marks a temporary file as in use until it is closed or unlock is called. It returns
// false if another server has removed the file as stale. On a file system without locks,
// no server does.
func (t *temporary) lock() bool {
	fd := int(t.f.Fd())
	if _, err := retry(func() (int, error) { return 0, sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err == unix.EWOULDBLOCK {
		return false
	}
	var st unix.Stat_t
	return sys.Fstat(fd, &st) != nil || st.Nlink > 0 || t.name == ""
}

// unlock lets other programs lock a published file.
func (t *temporary) unlock() { _ = sys.Flock(int(t.f.Fd()), unix.LOCK_UN) }

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

// sweep removes the temporary files of killed servers from an open directory. It ignores
// errors, because nothing depends on it.
func sweep(dir int) {
	var st unix.Stat_t
	if sys.Fstat(dir, &st) != nil || !swept.due(fileKey{uint64(st.Dev), st.Ino}) {
		return
	}
	fd, err := pathAt{dirfd: dir, name: "."}.open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	f := newFile(fd, "directory")
	defer f.Close()
	for examined := 0; examined < maxExamined; {
		names, err := f.Readdirnames(directoryBatch)
		for _, name := range names {
			if m := temporaryPattern().FindStringSubmatch(name); m != nil && m[1] == strconv.Itoa(os.Geteuid()) {
				removeStale(pathAt{dirfd: dir, name: name})
			}
		}
		examined += len(names)
		if err != nil {
			return
		}
	}
}

// removeStale removes a temporary file, unless it is locked. Any program may give a file such
// a name, so removeStale never waits: it leaves a file with a lease alone.
func removeStale(p pathAt) {
	st, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uint32(os.Geteuid()) {
		return
	}
	fd, err := retry(func() (int, error) {
		return sys.Openat(p.dirfd, p.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return
	}
	defer sys.Close(fd)
	if _, err := retry(func() (int, error) { return 0, sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err == nil && p.is(st) {
		sys.Unlinkat(p.dirfd, p.name, 0)
	}
}
