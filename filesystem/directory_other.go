//go:build !linux

package filesystem

import (
	"io/fs"
	"os"
	"syscall"
)

func openDirectory(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, syscall.ENOTDIR
	}
	return os.Open(path)
}

func targetMode(_ *os.File, path, name string) fs.FileMode {
	info, err := os.Stat(join(path, name))
	if err != nil {
		return noMode
	}
	return info.Mode().Type()
}
