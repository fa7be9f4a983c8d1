//go:build !linux

package server

import (
	"os"
	"path/filepath"
)

// openDirectory returns the path of a directory without links. This system cannot start a
// process in an open directory, so another program that changes the path at this moment
// changes where the command starts.
func openDirectory(path string) (*os.File, string, error) {
	real, err := filepath.EvalSymlinks(path)
	return nil, real, err
}
