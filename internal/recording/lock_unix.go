//go:build unix

package recording

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockDirectory locks a directory, which must be private to this user, so that no other
// server repairs recordings that this one is still writing.
func lockDirectory(dir *os.File) error {
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != os.Geteuid() {
		return fmt.Errorf("it belongs to the user %d", owner)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("its permissions are %04o, so that others can read or change it; run: chmod 700 %s", mode, dir.Name())
	}
	err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another server is recording in it")
	}
	return err
}
