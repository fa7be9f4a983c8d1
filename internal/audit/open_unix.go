//go:build unix

package audit

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openFile opens a log for appending. It must be owned by this user and not accessible to
// others.
func openFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errors.New("it is a symbolic link; name the file itself")
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid():
		err = fmt.Errorf("it belongs to the user %d; the log must belong to the user that the server runs as, %d", info.Sys().(*syscall.Stat_t).Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("its permissions are %04o, so that others can read or change it; run: chmod 600 %s", info.Mode().Perm(), path)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}
