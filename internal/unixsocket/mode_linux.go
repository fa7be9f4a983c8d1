package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ensureMode sets the mode of the socket that was just bound to path, if the umask has
// left another one. A user who may write in the directory may have replaced the socket,
// for example with a link to another file.
func ensureMode(path string, mode fs.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	ours := st.Mode&unix.S_IFMT == unix.S_IFSOCK && int(st.Uid) == os.Geteuid()
	switch {
	case fs.FileMode(st.Mode).Perm() == mode:
		return nil
	case !ours:
		return errors.New("somebody has put something else in its place; choose a directory that nobody else can write to")
	}
	// Not every kernel in use can change the mode of such a descriptor.
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}
