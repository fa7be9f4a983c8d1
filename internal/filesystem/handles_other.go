//go:build !linux

package filesystem

import (
	"io/fs"
	"os"
)

func openToWrite(path string, empty bool, perm fs.FileMode) (*os.File, error) {
	if err := guard(path, Follow); err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeDevice != 0 {
		return nil, refuseNotFile(path, Follow)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|nonblock, perm)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refuseNotFile(path, Follow)
	} else if err == nil && empty {
		err = pathError("open", path, f.Truncate(0))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
