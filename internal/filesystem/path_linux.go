package filesystem

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// pathAt is a name in an open directory, as the *at system calls expect it. When links are
// followed, dirfd is AT_FDCWD and the name is the whole path.
type pathAt struct {
	dirfd int
	name  string
	path  string // as requested, for errors
}

// locate opens the directory of a path. With NoFollow it enters the directories one by one,
// so it crosses no link, even while another program replaces directories with links. A
// link on the way is ENOTDIR. The caller must close the result.
func locate(file string, links Links) (pathAt, error) {
	if err := checkPath(file); err != nil {
		return pathAt{}, err
	}
	if links == Follow {
		return pathAt{dirfd: unix.AT_FDCWD, name: file, path: file}, nil
	}
	file = path.Clean(file)
	dir, name := path.Split(file)
	if name == "" {
		name = "."
	}
	p := pathAt{dirfd: -1, name: name, path: file}
	fd, err := openDirAt(unix.AT_FDCWD, "/")
	for _, part := range strings.Split(strings.Trim(dir, "/"), "/") {
		if err != nil {
			return pathAt{}, pathError("open", file, err)
		}
		if part == "" {
			break
		}
		parent := fd
		fd, err = openDirAt(parent, part)
		sys.Close(parent)
	}
	p.dirfd = fd
	if err != nil {
		return pathAt{}, pathError("open", file, err)
	}
	return p, nil
}

// close releases the directory.
func (p pathAt) close() {
	if p.dirfd >= 0 {
		sys.Close(p.dirfd)
	}
}

// open opens the file with O_NONBLOCK, because it must not wait for another process: a
// FIFO opens or fails at once, and a terminal does not wait for a carrier. O_NOCTTY keeps
// a terminal from becoming the server's.
func (p pathAt) open(flags int, perm uint32) (int, error) {
	return retry(func() (int, error) {
		return sys.Openat(p.dirfd, p.name, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, perm)
	})
}

// openContent opens a file to read or write its content.
//
// If another program has a lease on the file, as file servers do, the kernel asks it to give
// up the lease, and breaks the lease after a while. Until then opening with O_NONBLOCK fails,
// so openContent tries again until the context ends.
func (p pathAt) openContent(ctx context.Context, flags int, perm uint32) (int, error) {
	for began := time.Now(); ; {
		fd, err := p.open(flags, perm)
		if err != unix.EWOULDBLOCK || time.Since(began) > leaseTimeout {
			return fd, err
		}
		if st, statErr := p.stat(0); statErr == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return fd, err // a device that is busy
		}
		select {
		case <-time.After(leasePoll):
		case <-ctx.Done():
			return -1, context.Cause(ctx)
		}
	}
}

const (
	leasePoll    = 10 * time.Millisecond
	leaseTimeout = time.Minute // a lease ends after 45 s, unless the system has another lease-break-time
)

// stat describes the file. With AT_SYMLINK_NOFOLLOW it describes a link and not its target.
func (p pathAt) stat(flags int) (unix.Stat_t, error) {
	var st unix.Stat_t
	_, err := retry(func() (int, error) { return 0, sys.Fstatat(p.dirfd, p.name, &st, flags) })
	return st, err
}

// statx is stat with the creation time. It falls back to stat if the kernel or a sandbox
// does not support it.
func (p pathAt) statx(flags int) (unix.Statx_t, error) {
	var stx unix.Statx_t
	_, err := retry(func() (int, error) {
		return 0, sys.Statx(p.dirfd, p.name, flags|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &stx)
	})
	if err != unix.ENOSYS {
		return stx, err
	}
	st, err := p.stat(flags)
	stx.Mode, stx.Size, stx.Uid, stx.Gid = uint16(st.Mode), uint64(st.Size), st.Uid, st.Gid
	stx.Mtime.Sec, stx.Mtime.Nsec = int64(st.Mtim.Sec), uint32(st.Mtim.Nsec)
	return stx, err
}

// readLink returns the text of a link.
func (p pathAt) readLink() (string, error) {
	for buf := make([]byte, 256); ; buf = make([]byte, 4*len(buf)) {
		n, err := sys.Readlinkat(p.dirfd, p.name, buf)
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
	}
}

// is reports whether the name refers to the file that st describes.
func (p pathAt) is(st unix.Stat_t) bool {
	if p.dirfd < 0 {
		return false
	}
	here, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && here.Dev == st.Dev && here.Ino == st.Ino
}

// unchanged reports whether the name refers to the file that st describes, unmodified.
func (p pathAt) unchanged(st unix.Stat_t) bool {
	here, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && here.Dev == st.Dev && here.Ino == st.Ino && here.Size == st.Size && here.Mtim == st.Mtim
}

// resolveLast finds where a file is or would be: it follows links in the last component.
// It leaves links in the directories above to the system.
func resolveLast(p pathAt, links Links) (pathAt, error) {
	if links == NoFollow {
		dir, err := sys.Dup(p.dirfd)
		return pathAt{dirfd: dir, name: p.name, path: p.path}, err
	}
	// The name is not cleaned: after a link to a directory, ".." leads to the target's
	// parent.
	name := p.name
	for range 40 {
		text, err := os.Readlink(name)
		if err != nil {
			return openParent(name, p.path)
		}
		if !strings.HasPrefix(text, "/") {
			text = name[:strings.LastIndexByte(name, '/')+1] + text
		}
		name = text
	}
	return pathAt{dirfd: -1}, unix.ELOOP
}

func openParent(name, asked string) (pathAt, error) {
	dir, base := path.Split(name)
	if base == "" || base == "." || base == ".." {
		return pathAt{dirfd: -1}, unix.EISDIR
	}
	fd, err := pathAt{dirfd: unix.AT_FDCWD, name: dir}.open(unix.O_PATH|unix.O_DIRECTORY, 0)
	return pathAt{dirfd: fd, name: base, path: asked}, err
}

func openDirAt(dir int, name string) (int, error) {
	return retry(func() (int, error) {
		return sys.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// newFile wraps a descriptor so that the runtime never parks on it: reads and writes
// return at once, with EAGAIN if there is no data. It is for regular files, of which only
// a few in /proc return EAGAIN.
func newFile(fd int, name string) *os.File {
	sys.SetNonblock(fd, false)
	f := sys.NewFile(uintptr(fd), name)
	sys.SetNonblock(fd, true)
	return f
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

var haveProc = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self/fd")
	return err == nil
})
