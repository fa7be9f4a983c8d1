package filesystem

import (
	"context"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func getMetadata(path string, links Links, itself bool) (Metadata, error) {
	p, err := locate(path, links)
	if err != nil {
		return Metadata{}, err
	}
	defer p.close()
	st, err := p.statx(unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return Metadata{}, pathError("stat", path, err)
	}
	symlink := st.Mode&unix.S_IFMT == unix.S_IFLNK
	target := ""
	switch {
	case symlink && itself:
		if target, err = p.readLink(); err != nil {
			return Metadata{}, pathError("readlink", path, err)
		}
	case symlink:
		if links == NoFollow {
			return Metadata{}, &Refusal{textLinkInPath}
		}
		if st, err = p.statx(0); err != nil {
			return Metadata{}, pathError("stat", path, err)
		}
	}
	m := Metadata{
		IsDirectory: st.Mode&unix.S_IFMT == unix.S_IFDIR,
		IsFile:      st.Mode&unix.S_IFMT == unix.S_IFREG,
		IsSymlink:   symlink,
		Size:        int64(st.Size),
		Modified:    time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)),
		Mode:        modeOf(uint32(st.Mode)),
		UID:         &st.Uid,
		GID:         &st.Gid,
		Target:      target,
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		m.Created = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return m, nil
}

func setMetadata(ctx context.Context, path string, changes Changes) error {
	p, err := locate(path, changes.Links)
	if err != nil {
		return err
	}
	defer p.close()
	// The descriptor gives no access to the content, and opening it disturbs neither a
	// device nor the other end of a FIFO. All changes concern the same file, whatever
	// becomes of its name.
	nofollow := 0
	if changes.Links == NoFollow {
		nofollow = unix.O_NOFOLLOW
	}
	fd, err := p.open(unix.O_PATH|nofollow, 0)
	if err != nil {
		return pathError("open", path, err)
	}
	defer sys.Close(fd)
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil {
		return pathError("stat", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return &Refusal{textLinkInPath}
	}
	if !haveProc() {
		return pathError("open", path, unix.ENOSYS)
	}
	pinned := pathAt{dirfd: unix.AT_FDCWD, name: fdPath(fd), path: path}
	if changes.Size != nil {
		if err := pinned.truncate(ctx, st, *changes.Size, changes.Links); err != nil {
			return err
		}
	}
	if changes.Mode != nil { // after truncate, which takes set-ID bits away
		if err := pinned.chmod(ModeBits(*changes.Mode)); err != nil {
			return pathError("chmod", path, err)
		}
	}
	if changes.Modified != nil { // last, because truncate sets the time
		if err := pinned.chtimes(*changes.Modified); err != nil {
			return pathError("chtimes", path, err)
		}
	}
	return nil
}

// truncate changes the size of a file that st describes.
func (p pathAt) truncate(ctx context.Context, st unix.Stat_t, size int64, links Links) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return pathError("truncate", p.path, unix.EISDIR)
	default:
		return refuseNotFile(p.path, links)
	}
	fd, err := p.openContent(ctx, unix.O_WRONLY, 0)
	if err == nil {
		defer sys.Close(fd)
		_, err = retry(func() (int, error) { return 0, sys.Ftruncate(fd, size) })
	}
	return pathError("truncate", p.path, err)
}

// chmod sets the mode of a file that is not a link.
func (p pathAt) chmod(mode uint32) error { return sys.Fchmodat(p.dirfd, p.name, mode, 0) }

// chtimes sets the modification time of a file that is not a link.
func (p pathAt) chtimes(modified time.Time) error {
	ts, err := unix.TimeToTimespec(modified)
	if err != nil {
		return err
	}
	return sys.UtimesNanoAt(p.dirfd, p.name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, 0)
}

// targetMode returns the type bits of the target of a link in an open directory, or
// noMode for a dangling link.
func targetMode(dir *os.File, _, name string) fs.FileMode {
	st, err := pathAt{dirfd: int(dir.Fd()), name: name}.stat(0)
	if err != nil {
		return noMode
	}
	return typeOf(st.Mode)
}

// examine describes an entry of an open directory, or returns nil if it cannot.
func examine(dir *os.File, _, name string) *Metadata {
	p := pathAt{dirfd: int(dir.Fd()), name: name}
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
