//go:build !unix

package auth

import (
	"io/fs"
	"os"
)

func checkSocketDirectory(string) error { return nil }

func setSocketMode(uintptr, fs.FileMode) {}

func ensureSocketMode(path string, mode fs.FileMode) error { return os.Chmod(path, mode) }

// checkFile accepts every file, because on Windows its mode does not control access.
func checkFile(string, fs.FileInfo, FileKind) error { return nil }
