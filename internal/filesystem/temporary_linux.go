package filesystem

import (
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// temporary is a file that is being written. Where the file system allows, it has no name
// until it is published, so a killed server leaves nothing behind.
type temporary struct {
	f    *os.File
	dir  int
	name string // "" while it has no name
}

func newTemporary(dir int, perm uint32) (*temporary, error) {
	sweep(dir)
	if haveProc() {
		fd, err := place{dir: dir, name: "."}.open(unix.O_TMPFILE|unix.O_WRONLY, perm)
		if err == nil {
			return &temporary{f: plainFile(fd, "temporary file"), dir: dir}, nil
		}
		if err != unix.EOPNOTSUPP && err != unix.EISDIR && err != unix.EINVAL && err != unix.ENOENT {
			return nil, err
		}
	}
	for {
		name := temporaryName()
		fd, err := place{dir: dir, name: name}.open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, perm)
		if err == nil {
			t := &temporary{f: plainFile(fd, name), dir: dir, name: name}
			if t.hold() {
				return t, nil
			}
			t.f.Close() // the server that locks it removes it
			continue
		}
		if err != unix.EEXIST {
			return nil, err
		}
	}
}

// publish gives the file its name. Without replace it fails with EEXIST if the name
// exists.
func (t *temporary) publish(target place, replace bool) error {
	if t.name == "" && !replace {
		return t.link(target.name)
	}
	if t.name == "" {
		t.hold() // before anybody can see it
	}
	for t.name == "" {
		name := temporaryName()
		switch err := t.link(name); err {
		case nil:
			t.name = name
		case unix.EEXIST:
		default:
			return err
		}
	}
	var flags uint
	if !replace {
		flags = unix.RENAME_NOREPLACE
	}
	err := renameat2(t.dir, t.name, target.dir, target.name, flags)
	if !replace && (err == unix.EINVAL || err == unix.ENOSYS) { // the file system does not support flags
		err = linkat(t.dir, t.name, target.dir, target.name, 0)
		if err == nil {
			t.letGo()
			return nil // discard removes the other name
		}
	}
	if err == nil {
		t.name = ""
		t.letGo()
	}
	return err
}

func (t *temporary) link(name string) error {
	return linkat(unix.AT_FDCWD, fdPath(int(t.f.Fd())), t.dir, name, unix.AT_SYMLINK_FOLLOW)
}

// discard closes the file, and removes it if it was not published.
func (t *temporary) discard() {
	t.f.Close()
	if t.name != "" {
		sys.Unlinkat(t.dir, t.name, 0)
	}
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Tests replace these functions, because some file systems lack them.
var (
	linkat    = unix.Linkat
	renameat2 = unix.Renameat2
)

var haveProc = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self/fd")
	return err == nil
})

// resolveLast finds where a file is or would be: it follows links in the last component.
// It leaves links in the directories above to the system.
func resolveLast(p place, links Links) (place, error) {
	if links == NoFollow {
		dir, err := sys.Dup(p.dir)
		return place{dir: dir, name: p.name, path: p.path}, err
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
	return place{dir: -1}, unix.ELOOP
}

func openParent(name, asked string) (place, error) {
	dir, base := path.Split(name)
	if base == "" || base == "." || base == ".." {
		return place{dir: -1}, unix.EISDIR
	}
	fd, err := place{dir: unix.AT_FDCWD, name: dir}.open(unix.O_PATH|unix.O_DIRECTORY, 0)
	return place{dir: fd, name: base, path: asked}, err
}

// is reports whether the place holds the file that st describes.
func (p place) is(st unix.Stat_t) bool {
	if p.dir < 0 {
		return false
	}
	here, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && here.Dev == st.Dev && here.Ino == st.Ino
}

// unchanged reports whether the place holds the file that st describes, unmodified.
func (p place) unchanged(st unix.Stat_t) bool {
	here, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && here.Dev == st.Dev && here.Ino == st.Ino && here.Size == st.Size && here.Mtim == st.Mtim
}
