//go:build unix && !linux

package transport

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// ensureMode sets the mode of the socket that was just bound to path. A link that
// somebody has put there is not followed.
func ensureMode(path string, mode fs.FileMode) error {
	return unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode), unix.AT_SYMLINK_NOFOLLOW)
}
