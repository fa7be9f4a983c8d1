//go:build unix

package process

import (
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// searchPath returns the child's PATH.
func searchPath(env map[string]string) (list string, ok bool) {
	list, ok = env["PATH"]
	return list, ok
}

// checkSearchable checks that a directory can be the working directory of a child. The
// kernel has the last word, but does not report that the directory was the reason.
func checkSearchable(dir string) error {
	return sys.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS)
}

// checkExecutable checks that path, relative to dir unless absolute, is a file that this
// program may execute. The kernel has the last word; the check finds the right error early.
func checkExecutable(path, dir string) (string, error) {
	file := absolute(path, dir)
	info, err := sys.Stat(file)
	switch {
	case err != nil:
		return "", errnoOf(err)
	case !info.Mode().IsRegular():
		return "", syscall.EACCES
	}
	if err := sys.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
		return "", err
	}
	return path, nil
}
