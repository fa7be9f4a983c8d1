//go:build !linux

package server

import (
	"os"
	"path/filepath"
)

// openDirectory returns the path of a directory without links. Nothing can be started
// here in what was opened: who can change the path meanwhile has a command start elsewhere.
func openDirectory(path string) (*os.File, string, error) {
	real, err := filepath.EvalSymlinks(path)
	return nil, real, err
}
