package filesystem

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NamedTemporaries gives temporary files names from the start, as on file systems without
// nameless files.
func NamedTemporaries(t *testing.T) {
	old := haveProc
	haveProc = func() bool { return false }
	t.Cleanup(func() { haveProc = old })
}

// HoldWatcher keeps a Watcher from handling events until the caller calls release:
// handling an event begins with the lock of the journal.
func HoldWatcher(w *Watcher) (release func()) {
	w.journal.mu.Lock()
	return w.journal.mu.Unlock
}

// PoorFileSystem disables hard links and the flags of rename, which some network and
// foreign file systems lack.
func PoorFileSystem(t *testing.T) {
	NamedTemporaries(t)
	linkat = func(int, string, int, string, int) error { return unix.EPERM }
	renameat2 = func(olddir int, old string, newdir int, name string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		return unix.Renameat2(olddir, old, newdir, name, flags)
	}
	t.Cleanup(func() { linkat, renameat2 = unix.Linkat, unix.Renameat2 })
}

// HangInRename makes every rename of a temporary file call reached and then hang.
func HangInRename(reached func()) {
	renameat2 = func(int, string, int, string, uint) error {
		reached()
		time.Sleep(time.Hour) // without a timer the runtime would report a deadlock
		panic("not killed")
	}
}

// Settle gives a directory the bits of its mode that the umask took away.
func Settle(path string, mode uint32) error {
	return pathAt{dirfd: unix.AT_FDCWD, name: path}.settle(mode)
}
