package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// ErrMagicLink is the error for a path that leads, or may lead, over a magic link: a link in
// /proc to a file that a process has open.
var ErrMagicLink = errors.New("the path may lead over a link of a process")

// OpenPath opens a file of any kind only to identify it. It follows no magic links. Before
// Linux 5.6, which cannot tell them apart, it fails with ErrMagicLink.
func OpenPath(path string, links Links) (*os.File, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if links == NoFollow {
		how.Flags |= unix.O_NOFOLLOW
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := retry(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	switch err {
	case nil:
		return os.NewFile(uintptr(fd), path), nil
	case unix.ENOENT, unix.EACCES, unix.ENOTDIR, unix.ENAMETOOLONG:
		return nil, pathError("open", path, err)
	}
	return nil, ErrMagicLink
}

// maxLinks is the maximum number of links on a path, as in the kernel.
const maxLinks = 40

// OpenPermitted opens a file of any kind only to identify it. It calls permit with the file and with
// every directory on the way, and fails with the error of permit. It looks at nothing in a directory
// that permit refuses, so that the error does not depend on what is there.
func OpenPermitted(path string, permit func(*os.File) error) (*os.File, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := openDirAt(unix.AT_FDCWD, "/")
	if err != nil {
		return nil, err
	}
	f := newFile(fd, path)
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" {
			continue
		}
		next, target, err := openNext(f, name)
		switch {
		case err != nil:
		case target == "":
			err = permit(next)
		case links == maxLinks:
			err = unix.ELOOP
		default:
			links++
			rest = append(strings.Split(target, "/"), rest...)
		}
		if err != nil {
			if next != nil {
				next.Close()
			}
			f.Close()
			return nil, err
		}
		if next != nil {
			f.Close()
			f = next
		}
	}
	return f, nil
}

// openNext opens a name in a directory. If it is a link, openNext returns its target, and the root
// directory if the target begins there.
func openNext(dir *os.File, name string) (next *os.File, target string, err error) {
	fd, err := pathAt{dirfd: int(dir.Fd()), name: name}.open(unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, "", err
	}
	next = newFile(fd, name)
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return next, "", err
	}
	defer next.Close()
	if target, err = (pathAt{dirfd: fd}).readLink(); err != nil || !strings.HasPrefix(target, "/") {
		return nil, target, err
	}
	if fd, err = openDirAt(unix.AT_FDCWD, "/"); err != nil {
		return nil, "", err
	}
	return newFile(fd, "/"), target, nil
}

// OpenNoMagicLinks opens a regular file for reading. A magic link is ErrMagicLink.
func OpenNoMagicLinks(ctx context.Context, path string, links Links) (*os.File, error) {
	identity, err := OpenPath(path, links)
	if errors.Is(err, ErrMagicLink) {
		return nil, err
	}
	if identity != nil {
		defer identity.Close()
	}
	f, err := openFollowing(ctx, path, links)
	if err != nil {
		return nil, err
	}
	if identity != nil && isSame(identity, f) {
		return f, nil
	}
	_ = f.Close() // replaced in between
	return nil, ErrMagicLink
}

func openFollowing(ctx context.Context, path string, links Links) (*os.File, error) {
	if links == NoFollow {
		return OpenNoFollow(ctx, path)
	}
	return OpenFile(ctx, path, HandleRead, 0)
}

func isSame(a, b *os.File) bool {
	one, err := a.Stat()
	if err != nil {
		return false
	}
	other, err := b.Stat()
	return err == nil && os.SameFile(one, other)
}

// InProc reports whether an open file is in /proc, whatever path led to it. The content
// of such a file may depend on the process that opened it.
func InProc(f *os.File) bool {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &st)
	return err != nil || st.Type == unix.PROC_SUPER_MAGIC
}

// IsOwnProcess reports whether an open file describes this program itself, such as its
// memory.
func IsOwnProcess(f *os.File) bool {
	if !InProc(f) {
		return false
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	rest, ok := strings.CutPrefix(path, "/proc/")
	if err != nil || !ok {
		return true // unknown, so assume it does
	}
	number, _, _ := strings.Cut(rest, "/")
	if _, err := strconv.Atoi(number); err != nil {
		return false
	}
	_, err = os.Lstat("/proc/self/task/" + number) // each thread has a name like a process
	return err == nil
}

func openRegular(ctx context.Context, path string, links Links) (*os.File, int64, error) {
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
	fd, err := p.openContent(ctx, flags, 0)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	err = sys.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return newFile(fd, path), st.Size, nil
	}
	sys.Close(fd)
	if err != nil {
		return nil, 0, pathError("stat", path, err)
	}
	return nil, 0, refuseNotFile(path, links)
}

// openToWrite creates a file, or opens an existing regular file and, if asked to, empties
// it in place. With O_NONBLOCK, opening a FIFO without a reader for writing fails.
func openToWrite(ctx context.Context, path string, empty bool, perm fs.FileMode) (*os.File, error) {
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
	fd, err := p.openContent(ctx, unix.O_WRONLY|unix.O_CREAT, uint32(perm))
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
	return newFile(fd, path), nil
}

func openDirectory(path string) (*os.File, error) {
	p := pathAt{dirfd: unix.AT_FDCWD, name: path}
	fd, err := p.open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return newFile(fd, path), nil
}
