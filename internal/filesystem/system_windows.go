package filesystem

import (
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// fileID returns a value that is equal for all names of a file or directory.
func fileID(path string) (any, bool) {
	resolved, err := filepath.EvalSymlinks(path)
	return resolved, err == nil
}

func isInvalid(errno syscall.Errno) bool {
	switch errno {
	case syscall.EINVAL, windows.ERROR_INVALID_PARAMETER, windows.ERROR_INVALID_NAME, windows.ERROR_NEGATIVE_SEEK:
		return true
	}
	return false
}

// owner returns nil, because users have no numbers.
func owner(fs.FileInfo) (uid, gid *uint32) { return nil, nil }
