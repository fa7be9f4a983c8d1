package filesystem

import "path/filepath"

// directoryID returns a value that is equal for all names of a directory.
func directoryID(path string) (any, bool) {
	resolved, err := filepath.EvalSymlinks(path)
	return resolved, err == nil
}
