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

// examine describes an entry of a directory, or returns nil if it cannot.
func examine(_ *os.File, path, name string) *Metadata {
	info, err := os.Lstat(join(path, name))
	if err != nil {
		return nil
	}
	m := &Metadata{Size: info.Size(), Modified: info.ModTime(), Mode: info.Mode()}
	if isLink(m.Mode) {
		if m.Target, err = os.Readlink(join(path, name)); err != nil {
			return nil
		}
	}
	return m
}

func targetMode(_ *os.File, path, name string) fs.FileMode {
	info, err := os.Stat(join(path, name))
	if err != nil {
		return noMode
	}
	return info.Mode().Type()
}
