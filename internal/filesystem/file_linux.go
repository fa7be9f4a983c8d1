package filesystem

import (
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func openRegular(path string, links Links) (*os.File, int64, error) {
	p, err := locate(path, links)
	if err != nil {
		return nil, 0, err
	}
	defer p.close()
	follow := 0
	flags := unix.O_RDONLY
	if links == NoFollow {
		follow, flags = unix.AT_SYMLINK_NOFOLLOW, flags|unix.O_NOFOLLOW
	}
	// Opening a device may already rewind a tape or arm a watchdog, and the other end of
	// a FIFO notices when it is opened. So examine the file first.
	st, err := p.stat(follow)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK, unix.S_IFSOCK: // the system refuses to open the last two
	default:
		return nil, 0, refuseNotFile(path, links)
	}
	fd, err := p.open(flags, 0)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	err = sys.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return plainFile(fd, path), st.Size, nil
	}
	sys.Close(fd)
	if err != nil {
		return nil, 0, pathError("stat", path, err)
	}
	return nil, 0, refuseNotFile(path, links)
}
