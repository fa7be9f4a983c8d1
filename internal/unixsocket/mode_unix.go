//go:build unix && !linux

package unixsocket

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// ensureMode sets the mode of the socket that was just bound to path. It does not follow
// a link that another user may have put there.
func ensureMode(path string, mode fs.FileMode) error {
	return unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode), unix.AT_SYMLINK_NOFOLLOW)
}
