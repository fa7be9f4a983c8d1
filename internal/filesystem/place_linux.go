package filesystem

import (
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// place is a name in an open directory, as the *at system calls expect it. When links are
// followed, dir is AT_FDCWD and the name is the whole path.
type place struct {
	dir  int
	name string
	path string // as requested, for errors
}

// locate finds the place of a path. With NoFollow it enters the directories one by one,
// so it crosses no link, even while another program replaces directories with links. A
// link on the way is ENOTDIR. The caller must close the place.
func locate(file string, links Links) (place, error) {
	if err := checkPath(file); err != nil {
		return place{}, err
	}
	if links == Follow {
		return place{dir: unix.AT_FDCWD, name: file, path: file}, nil
	}
	file = path.Clean(file)
	dir, name := path.Split(file)
	if name == "" {
		name = "."
	}
	p := place{dir: -1, name: name, path: file}
	fd, err := openDirAt(unix.AT_FDCWD, "/")
	for _, part := range strings.Split(strings.Trim(dir, "/"), "/") {
		if err != nil {
			return place{}, pathError("open", file, err)
		}
		if part == "" {
			break
		}
		parent := fd
		fd, err = openDirAt(parent, part)
		sys.Close(parent)
	}
	p.dir = fd
	if err != nil {
		return place{}, pathError("open", file, err)
	}
	return p, nil
}

// close releases the directory.
func (p place) close() {
	if p.dir >= 0 {
		sys.Close(p.dir)
	}
}

// open opens the place with O_NONBLOCK, because it must not wait for another process: a
// FIFO opens or fails at once, and a terminal does not wait for a carrier. O_NOCTTY keeps
// a terminal from becoming the server's.
//
// Where another program has a lease on the file, as file servers do, that program is asked
// to give it up, and the kernel ends the lease after a while if it does not. Until then an
// open with O_NONBLOCK fails, so this one is repeated.
func (p place) open(flags int, perm uint32) (int, error) {
	for began := time.Now(); ; time.Sleep(leasePoll) {
		fd, err := retry(func() (int, error) {
			return sys.Openat(p.dir, p.name, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, perm)
		})
		if err != unix.EWOULDBLOCK || time.Since(began) > leaseTimeout {
			return fd, err
		}
		if st, statErr := p.stat(0); statErr == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return fd, err // a device that is busy
		}
	}
}

const (
	leasePoll    = 10 * time.Millisecond
	leaseTimeout = time.Minute // a lease ends after 45 s, unless the system has another lease-break-time
)

// stat describes the place. If flags has AT_SYMLINK_NOFOLLOW, it describes a link and not
// its target.
func (p place) stat(flags int) (unix.Stat_t, error) {
	var st unix.Stat_t
	_, err := retry(func() (int, error) { return 0, sys.Fstatat(p.dir, p.name, &st, flags) })
	return st, err
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

// plainFile wraps a descriptor so that the runtime never parks on it: reads and writes
// return at once, with EAGAIN if there is no data. It is for regular files, of which only
// a few in /proc return EAGAIN.
func plainFile(fd int, name string) *os.File {
	sys.SetNonblock(fd, false)
	f := sys.NewFile(uintptr(fd), name)
	sys.SetNonblock(fd, true)
	return f
}
