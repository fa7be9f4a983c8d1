package filesystem

import (
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func setMetadata(path string, changes Changes) error {
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
	pinned := place{dir: unix.AT_FDCWD, name: fdPath(fd), path: path}
	if changes.Size != nil {
		if err := pinned.truncate(st, *changes.Size, changes.Links); err != nil {
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
func (p place) truncate(st unix.Stat_t, size int64, links Links) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return pathError("truncate", p.path, unix.EISDIR)
	default:
		return refuseNotFile(p.path, links)
	}
	fd, err := p.open(unix.O_WRONLY, 0)
	if err == nil {
		defer sys.Close(fd)
		_, err = retry(func() (int, error) { return 0, sys.Ftruncate(fd, size) })
	}
	return pathError("truncate", p.path, err)
}

// chmod sets the mode of a place that is no link.
func (p place) chmod(mode uint32) error { return sys.Fchmodat(p.dir, p.name, mode, 0) }

// chtimes sets the time of modification of a place that is no link.
func (p place) chtimes(modified time.Time) error {
	ts, err := unix.TimeToTimespec(modified)
	if err != nil {
		return err
	}
	return sys.UtimesNanoAt(p.dir, p.name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, 0)
}

func symlink(target, path string, links Links) error {
	p, err := locate(path, links)
	if err != nil {
		return err
	}
	defer p.close()
	return pathError("symlink", path, sys.Symlinkat(target, p.dir, p.name))
}

func readLink(path string, links Links) (string, error) {
	p, err := locate(path, links)
	if err != nil {
		return "", err
	}
	defer p.close()
	text, err := p.readLink()
	return text, pathError("readlink", path, err)
}

// readLink returns the text of the link at the place.
func (p place) readLink() (string, error) {
	for buf := make([]byte, 256); ; buf = make([]byte, 4*len(buf)) {
		n, err := sys.Readlinkat(p.dir, p.name, buf)
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
	}
}
