package server

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openDirectory opens a directory and returns its path without links. The target of a
// path may change at any time; the open directory does not.
func openDirectory(path string) (*os.File, string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", err
	}
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		_ = unix.Close(fd)
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), path), real, nil
}
