// Package statefile has the directory in which programs remember something for their user,
// and writes files in it.
package statefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Dir returns the directory, which may not exist.
func Dir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "exec-server"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the directory for state: %w", err)
	}
	return filepath.Join(home, ".local", "state", "exec-server"), nil
}

// Replace writes a file that only this user can read, and makes its directory. Other
// programs see the file as it was, or complete.
func Replace(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // it fails after the rename
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
