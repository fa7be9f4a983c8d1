//go:build !linux

package filesystem

import (
	"os"
	"syscall"
)

func openRegular(path string, links Links) (*os.File, int64, error) {
	if err := guard(path, links); err != nil {
		return nil, 0, err
	}
	stat := os.Stat
	if links == NoFollow {
		stat = os.Lstat
	}
	info, err := stat(path)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	if isLink(info.Mode()) {
		return nil, 0, pathError("open", path, syscall.ELOOP)
	}
	if !info.Mode().IsRegular() && info.Mode()&os.ModeSocket == 0 {
		return nil, 0, refuseNotFile(path, links)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	if info, err = f.Stat(); err == nil && info.Mode().IsRegular() {
		return f, info.Size(), nil
	}
	f.Close()
	if err != nil {
		return nil, 0, pathError("stat", path, err)
	}
	return nil, 0, refuseNotFile(path, links)
}
