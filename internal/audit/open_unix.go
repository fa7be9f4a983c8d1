//go:build unix

package audit

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openFile opens a log that belongs to this user alone, and locks it, so that no other
// server writes it.
func openFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid():
		err = fmt.Errorf("it belongs to the user %d", info.Sys().(*syscall.Stat_t).Uid)
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("its permissions are %04o, so that others can read or change it; run: chmod 600 %s", info.Mode().Perm(), path)
	default:
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another server writes to it")
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// isDeleted reports whether the file no longer has a name.
func isDeleted(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Sys().(*syscall.Stat_t).Nlink == 0
}
