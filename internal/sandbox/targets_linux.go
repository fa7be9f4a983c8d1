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

// A mount needs a mount point. For a missing protected name the server creates a
// directory while a command uses it: empty, and with a mode that no other program would
// choose. Every user of the directory holds a shared lock on it. The user who gets an
// exclusive lock is the last one and removes it. This works between servers, too, and the
// locks of a killed server are gone. The next command that needs a directory of a killed
// server takes it over; otherwise the next server finds its name in the journal and
// removes it when it starts.

// targetMode marks a directory that was created as a target.
const targetMode = 0o555

// targetMu keeps two users in this program from each seeing the other as the last.
var targetMu sync.Mutex

// target is a directory in use as a mount point.
type target struct {
	path    string
	dir     *os.File // locked
	journal *journal // nil: not this server's use

	borrowed bool // another program removes it
}

// Limits of the attempts to acquire a target: while others create and remove it, and
// while another user holds the exclusive lock.
const (
	maxTargetTries = 100
	maxTargetWaits = 20 // of a millisecond each
)

// acquireTarget shares an existing target, or creates one if the name is missing. It returns
// nil without an error if the name is another file, or if the command's user cannot create
// it. Any user who can read the directory can lock it; acquireTarget does not wait for one
// who keeps the lock.
func acquireTarget(path string, missing bool, j *journal) (*target, error) {
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

// borrowTarget shares a target of another command, for a command that may not create any.
func borrowTarget(path string) (*target, error) {
	t, err := lockTarget(path)
	if err != nil { // it is being removed, so make another plan
		return nil, &fs.PathError{Op: "lock", Path: path, Err: fs.ErrNotExist}
	}
	if t != nil {
		t.borrowed = true
	}
	return t, nil
}

// tryTarget is one attempt of acquireTarget. It fails with errGone, errBusy or fs.ErrExist
// when the state has just changed.
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
		j.add(path, t.dir)
	}
	return t, err
}

// makeTarget creates a target.
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
	// Set the mode whatever the umask is. With another mode, the directory would only be
	// left behind.
	if fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Fchmod(fd, targetMode)
		_ = unix.Close(fd)
	}
	return nil
}

// openParent opens the directory of a target by a path without links. A command confined
// to a root may replace a directory in it with a link at any time. Not every kernel with
// bubblewrap has openat2, which would prevent that.
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
	errBusy = errors.New("another program has locked it")
)

// lockTarget locks a directory that was created as a target. It returns nil if it was not,
// or if it belongs to another user and is locked.
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
		return nil, nil // something else
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

// isTarget reports whether a directory was created as a target, by any user.
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

// release releases the target, and removes it if it is empty and no other program uses it.
// Otherwise it returns false. The other program may not be able to remove it, so the caller
// must call release again later.
func (t *target) release() bool {
	targetMu.Lock()
	defer targetMu.Unlock()
	if t.borrowed {
		_ = t.dir.Close()
		return true
	}
	if t.dir == nil && !t.relock() {
		return true
	}
	alone := unix.Flock(int(t.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	if alone {
		t.remove()
	}
	_ = t.dir.Close()
	t.dir = nil
	if alone && t.journal != nil {
		t.journal.remove()
	}
	return alone
}

// remove removes the target if it still exists and is empty.
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

// relock locks a target that other programs used when it was released.
func (t *target) relock() bool {
	found, _ := lockTarget(t.path)
	if found == nil {
		t.journal.remove()
		return false
	}
	t.dir = found.dir
	return true
}
