package filesystem

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NamedTemporaries makes temporary files have names from the start, as on file
// systems that cannot do otherwise.
func NamedTemporaries(t *testing.T) {
	old := haveProc
	haveProc = func() bool { return false }
	t.Cleanup(func() { haveProc = old })
}

// HoldWatcher keeps a Watcher from taking events until the returned function
// is called: what it has to do first needs the journal.
func HoldWatcher(w *Watcher) (release func()) {
	w.journal.mu.Lock()
	return w.journal.mu.Unlock
}

// PoorFileSystem takes away hard links and the flags of rename, as some
// network and foreign file systems do.
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
		time.Sleep(time.Hour) // nothing else keeps the program from being found deadlocked
		panic("not killed")
	}
}
