//go:build unix

package execvp

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Check checks that a path leads to a file that this program may execute. The kernel has the
// last word; the check finds the right error early. The error is a syscall.Errno where it can be.
func Check(path string) error {
	info, err := sys.Stat(path)
	errno := syscall.Errno(0)
	switch {
	case errors.As(err, &errno):
		return errno
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return syscall.EACCES
	}
	return sys.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}
