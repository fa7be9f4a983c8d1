//go:build !linux

package filesystem

import (
	"os"
	"path/filepath"
	"syscall"
)

// guard prepares an operation on path. Where directories cannot be entered one
// by one it looks at every component beforehand: that catches every link that
// is there, not one put there in between.
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
