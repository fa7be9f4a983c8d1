package filesystem

import "path/filepath"

// fileID returns a value that is equal for all names of a file or directory.
func fileID(path string) (any, bool) {
	resolved, err := filepath.EvalSymlinks(path)
	return resolved, err == nil
}
