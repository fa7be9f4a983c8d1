package filesystem

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func openDirectory(path string) (*os.File, error) {
	p := place{dir: unix.AT_FDCWD, name: path}
	fd, err := p.open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return plainFile(fd, path), nil
}

// targetMode returns the type bits of what a link in an open directory leads
// to, noMode if it leads nowhere.
func targetMode(dir *os.File, _, name string) fs.FileMode {
	st, err := place{dir: int(dir.Fd()), name: name}.stat(0)
	if err != nil {
		return noMode
	}
	return typeOf(st.Mode)
}

func typeOf(mode uint32) fs.FileMode {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 0
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	case unix.S_IFIFO:
		return fs.ModeNamedPipe
	case unix.S_IFSOCK:
		return fs.ModeSocket
	case unix.S_IFCHR:
		return fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		return fs.ModeDevice
	}
	return noMode
}
