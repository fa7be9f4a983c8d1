package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A mount needs something to sit on. For a protected name that does not exist, a
// directory is made for as long as somebody uses it: empty, and with a mode that
// nobody else would choose. Everybody who uses it holds a shared lock on it; who
// can get the lock for himself alone is the last one, and removes it. That works
// between servers, too, and the locks of a server that has been killed are gone.
// What such a server has left is taken over by the next who needs it, or removed
// at the start of the next server, which finds the names in the journal.

// targetMode tells a directory that was made to be a mount's target.
const targetMode = 0o555

// targetMu keeps two uses in this program from mistaking each other for the last.
var targetMu sync.Mutex

// target is a directory that is in use as the target of a mount.
type target struct {
	path    string
	dir     *os.File // locked
	journal *journal // nil: not this server's use

	borrowed bool // it stays there while it is used, and is others' to remove
}

// How often a target is tried to be had: while others make and remove it, and
// while somebody has it locked for himself.
const (
	maxTargetTries = 100
	maxTargetWaits = 20 // of a millisecond
)

// takeTarget shares a directory that was made for this, or makes one if it is
// missing. nil without an error means that there is something else, or that
// nobody with our rights can make it. Whoever can read the directory can lock it;
// who does not let go of it is not waited for.
func takeTarget(path string, missing bool, j *journal) (*target, error) {
	waits := 0
	for range maxTargetTries {
		t, err := tryTarget(path, missing, j)
		switch {
		case errors.Is(err, errGone):
			missing = true
		case errors.Is(err, fs.ErrExist):
			missing = false
		case !errors.Is(err, errBusy):
			return t, err
		case waits == maxTargetWaits:
			return nil, nil
		default:
			waits++
			time.Sleep(time.Millisecond)
		}
	}
	return nil, fmt.Errorf("make %s: it is removed again and again", path)
}

// borrowTarget shares a directory that others have made a target, for those who may
// make none.
func borrowTarget(path string) (*target, error) {
	t, err := lockTarget(path)
	if err != nil { // it is being removed: there has to be another plan
		return nil, &fs.PathError{Op: "lock", Path: path, Err: fs.ErrNotExist}
	}
	if t != nil {
		t.borrowed = true
	}
	return t, nil
}

// tryTarget is takeTarget for what is missing, or is not. It fails with errGone,
// errBusy or fs.ErrExist when that has just changed.
func tryTarget(path string, missing bool, j *journal) (*target, error) {
	targetMu.Lock()
	defer targetMu.Unlock()
	if missing {
		err := makeTarget(path)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	t, err := lockTarget(path)
	if t != nil {
		t.journal = j
		j.note(path, t.dir)
	}
	return t, err
}

// makeTarget makes a directory that is a target.
func makeTarget(path string) error {
	parent, err := openParent(path)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	name := filepath.Base(path)
	if err := unix.Mkdirat(parent, name, targetMode); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	// Whatever the umask. Without this mode, it only stays behind.
	if fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Fchmod(fd, targetMode)
		_ = unix.Close(fd)
	}
	return nil
}

// openParent opens the directory that a target is in, by a path that leads over
// no link. What is confined to a root may put one in place of a directory in there
// at any time. Not every kernel with bubblewrap has openat2 for that.
func openParent(path string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	parent := filepath.Dir(path)
	fd, err := unix.Open("/", flags, 0)
	for _, name := range strings.Split(strings.Trim(parent, "/"), "/") {
		if err != nil || name == "" {
			break
		}
		dir := fd
		fd, err = unix.Openat(dir, name, flags, 0)
		_ = unix.Close(dir)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: parent, Err: err}
	}
	return fd, nil
}

var (
	errGone = errors.New("it has been removed")
	errBusy = errors.New("somebody else has locked it")
)

// lockTarget locks a directory if it is one that was made to be a target; nil if
// it is not, or is another user's that cannot be had at once.
func lockTarget(path string) (*target, error) {
	name, fd := filepath.Base(path), -1
	parent, err := openParent(path)
	if err == nil {
		defer unix.Close(parent)
		fd, err = unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil, errGone
	}
	if err != nil {
		return nil, nil // another thing
	}
	dir := os.NewFile(uintptr(fd), path)
	info, err := dir.Stat()
	if err != nil || !isTarget(dir, info) {
		_ = dir.Close()
		return nil, nil
	}
	if unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil { // its last user may be removing it
		_ = dir.Close()
		if !isOwn(info) {
			return nil, nil
		}
		return nil, errBusy
	}
	if !sameAt(parent, name, dir) {
		_ = dir.Close()
		return nil, errGone
	}
	return &target{path: path, dir: dir}, nil
}

// isTarget tells a directory that was made to be a target, by whomever.
func isTarget(dir *os.File, info fs.FileInfo) bool {
	if info.Mode().Perm() != targetMode {
		return false
	}
	names, _ := dir.Readdirnames(1)
	return len(names) == 0
}

// sameAt reports whether a name in a directory still leads to an open one.
func sameAt(parent int, name string, dir *os.File) bool {
	var named, open unix.Stat_t
	return unix.Fstatat(parent, name, &named, unix.AT_SYMLINK_NOFOLLOW) == nil && unix.Fstat(int(dir.Fd()), &open) == nil &&
		named.Dev == open.Dev && named.Ino == open.Ino
}

// release gives the target up, and removes it if nobody else uses it and nobody
// has put anything into it. It reports false when others still use it; then they
// may not be able to remove it, and release is called again later.
func (t *target) release() bool {
	targetMu.Lock()
	defer targetMu.Unlock()
	if t.borrowed {
		_ = t.dir.Close()
		return true
	}
	if t.dir == nil && !t.again() {
		return true
	}
	alone := unix.Flock(int(t.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	if alone {
		t.remove()
	}
	_ = t.dir.Close()
	t.dir = nil
	if alone && t.journal != nil {
		t.journal.forget()
	}
	return alone
}

// remove removes the target, if it is still there and empty: what is not empty is
// somebody's.
func (t *target) remove() {
	parent, err := openParent(t.path)
	if err != nil {
		return
	}
	defer unix.Close(parent)
	if name := filepath.Base(t.path); sameAt(parent, name, t.dir) {
		_ = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
}

// again locks a target again that others used when it was given up.
func (t *target) again() bool {
	found, _ := lockTarget(t.path)
	if found == nil {
		t.journal.forget()
		return false
	}
	t.dir = found.dir
	return true
}
