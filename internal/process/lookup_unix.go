//go:build unix

package process

import (
	"golang.org/x/sys/unix"

	"execserver/internal/execvp"
	"execserver/internal/sys"
)

// searchPath returns the child's PATH.
func searchPath(env map[string]string) (list string, ok bool) {
	list, ok = env["PATH"]
	return list, ok
}

// checkSearchable checks that this program may enter a directory.
func checkSearchable(dir string) error {
	return sys.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS)
}

// checkExecutable checks the file at path, which is relative to dir unless it is absolute. It
// returns the path with which to start the program.
func checkExecutable(path, dir string) (string, error) {
	return path, execvp.Check(absolute(path, dir))
}
