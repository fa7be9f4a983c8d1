//go:build unix

package filesystem

import (
	"os"
	"syscall"
)

// fileID returns a value that is equal for all names of a file or directory.
func fileID(path string) (any, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, false
	}
	return [2]uint64{uint64(st.Dev), uint64(st.Ino)}, true
}

func isInvalid(errno syscall.Errno) bool { return errno == syscall.EINVAL }
