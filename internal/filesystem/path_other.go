//go:build !linux

package filesystem

import (
	"os"
	"path/filepath"
	"syscall"
)

// guard prepares an operation on path. This system cannot enter directories one by one,
// so guard examines every component beforehand. It finds every existing link, but not a
// link that is created in between.
func guard(path string, links Links) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if links == Follow {
		return nil
	}
	var parents []string
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		parents = append(parents, dir)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	for i := len(parents) - 1; i >= 0; i-- {
		info, err := os.Lstat(parents[i])
		if err != nil {
			return pathError("open", path, err)
		}
		if !info.IsDir() {
			return pathError("open", path, syscall.ENOTDIR)
		}
	}
	return nil
}
