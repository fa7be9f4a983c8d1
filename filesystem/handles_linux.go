package filesystem

import (
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// openReplacement creates a file, or empties the regular file there is, in
// place. Opening a FIFO for writing without a reader fails, with O_NONBLOCK.
func openReplacement(path string) (*os.File, error) {
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
	fd, err := p.open(unix.O_WRONLY|unix.O_CREAT, 0o666)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	var st unix.Stat_t
	err = sys.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		sys.Close(fd)
		return nil, refuseNotFile(path, Follow)
	}
	if err == nil && st.Size > 0 {
		err = sys.Ftruncate(fd, 0)
	}
	if err != nil {
		sys.Close(fd)
		return nil, pathError("open", path, err)
	}
	return plainFile(fd, path), nil
}
