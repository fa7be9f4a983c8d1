//go:build unix

package codexconf

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a new file the owner and group of the file that it replaces.
func keepOwner(file *os.File, old fs.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	is, ok1 := info.Sys().(*syscall.Stat_t)
	was, ok2 := old.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 || is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	return file.Chown(int(was.Uid), int(was.Gid))
}
