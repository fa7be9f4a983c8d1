// Package execvp finds programs as execvp does. A server does it for commands that it does not
// confine, and a launcher, from inside the sandbox, for those that it does.
package execvp

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
)

// DefaultPath is searched when the environment of a command has no PATH.
const DefaultPath = "/usr/local/bin:/usr/bin:/bin"

// IsPath reports whether a program is a path, which is not looked up in PATH.
func IsPath(program string) bool {
	return strings.ContainsRune(program, '/') || strings.ContainsRune(program, filepath.Separator)
}

// Find calls try with the paths that a program may have: the program itself if it is a path,
// otherwise its name in every directory of list. Find spells a path as execvp does, because a
// script sees it as its $0. It stops when try returns nil or true. The error is that of try, or, if
// a search found nothing, EACCES if try has returned it, and ENOENT otherwise.
func Find(program, list string, try func(path string) (stop bool, err error)) error {
	if IsPath(program) {
		_, err := try(program)
		return err
	}
	found := error(syscall.ENOENT)
	for _, dir := range filepath.SplitList(list) {
		path := program
		if dir != "" { // an empty element means the working directory
			path = dir + string(filepath.Separator) + program
		}
		switch stop, err := try(path); {
		case err == nil || stop:
			return err
		case errors.Is(err, syscall.EACCES):
			found = syscall.EACCES
		}
	}
	return found
}
