package filesystem

import (
	"io/fs"
	"os"
	"time"

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

// targetMode returns the type bits of the target of a link in an open directory, or
// noMode if the link leads nowhere.
func targetMode(dir *os.File, _, name string) fs.FileMode {
	st, err := place{dir: int(dir.Fd()), name: name}.stat(0)
	if err != nil {
		return noMode
	}
	return typeOf(st.Mode)
}

// examine describes an entry of an open directory, or returns nil if it cannot.
func examine(dir *os.File, _, name string) *Metadata {
	p := place{dir: int(dir.Fd()), name: name}
	st, err := p.stat(unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return nil
	}
	m := &Metadata{Size: st.Size, Modified: time.Unix(st.Mtim.Unix()), Mode: modeOf(st.Mode)}
	if isLink(m.Mode) {
		if m.Target, err = p.readLink(); err != nil {
			return nil
		}
	}
	return m
}

// modeOf converts the mode of a system call.
func modeOf(mode uint32) fs.FileMode {
	m := fs.FileMode(mode).Perm() | typeOf(mode)
	for bit, special := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= special
		}
	}
	return m
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
