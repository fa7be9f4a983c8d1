package filesystem

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// openToWrite creates a file, or opens an existing regular file and, if asked to, empties
// it in place. With O_NONBLOCK, opening a FIFO without a reader for writing fails.
func openToWrite(path string, empty bool, perm fs.FileMode) (*os.File, error) {
	p, err := locate(path, Follow)
	if err != nil {
		return nil, err
	}
	if st, err := p.stat(0); err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR, unix.S_IFBLK:
			return nil, refuseNotFile(path, Follow)
		}
	}
	fd, err := p.open(unix.O_WRONLY|unix.O_CREAT, uint32(perm))
	if err != nil {
		return nil, pathError("open", path, err)
	}
	var st unix.Stat_t
	err = sys.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		sys.Close(fd)
		return nil, refuseNotFile(path, Follow)
	}
	if err == nil && empty && st.Size > 0 {
		err = sys.Ftruncate(fd, 0)
	}
	if err != nil {
		sys.Close(fd)
		return nil, pathError("open", path, err)
	}
	return plainFile(fd, path), nil
}
