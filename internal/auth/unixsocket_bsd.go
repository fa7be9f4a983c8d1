//go:build unix && !linux

package auth

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// ensureSocketMode sets the mode of the socket just bound to path. It does not follow a
// link that another user may have put in its place.
func ensureSocketMode(path string, mode fs.FileMode) error {
	return unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode), unix.AT_SYMLINK_NOFOLLOW)
}
