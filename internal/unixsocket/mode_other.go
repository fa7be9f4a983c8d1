//go:build !unix

package unixsocket

import (
	"io/fs"
	"os"
)

func checkDirectory(string) error { return nil }

func setMode(uintptr, fs.FileMode) {}

func ensureMode(path string, mode fs.FileMode) error { return os.Chmod(path, mode) }
