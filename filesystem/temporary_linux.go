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

// temporary is a file in the making. Where the file system can, it has no name
// until it is published, so that nothing is left behind if we are killed.
type temporary struct {
	f    *os.File
	dir  int
	name string // "" while it has none
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
			t.f.Close() // whoever holds it removes it
			continue
		}
		if err != unix.EEXIST {
			return nil, err
		}
	}
}

// publish gives the file its name. Unless it is to replace a file, it fails
// with EEXIST if there is one.
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
	if !replace && (err == unix.EINVAL || err == unix.ENOSYS) { // the file system knows no flags
		err = linkat(t.dir, t.name, target.dir, target.name, 0)
		if err == nil {
			t.letGo()
			return nil // and discard removes the other name
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

// discard closes the file and removes it if it was not published.
func (t *temporary) discard() {
	t.f.Close()
	if t.name != "" {
		sys.Unlinkat(t.dir, t.name, 0)
	}
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// For tests, since not every file system has these.
var (
	linkat    = unix.Linkat
	renameat2 = unix.Renameat2
)

var haveProc = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self/fd")
	return err == nil
})

// resolveLast finds where a file really is, or where it would be: the place
// behind the links in the last component. Those further up are none of our
// business, the directory is what it is.
func resolveLast(p place, links Links) (place, error) {
	if links == NoFollow {
		dir, err := sys.Dup(p.dir)
		return place{dir: dir, name: p.name, path: p.path}, err
	}
	// Not cleaned: after a link to a directory, ".." is not where it seems.
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

// is reports whether the place holds this very file.
func (p place) is(st unix.Stat_t) bool {
	if p.dir < 0 {
		return false
	}
	here, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && here.Dev == st.Dev && here.Ino == st.Ino
}

// unchanged reports whether the place holds this file as it was.
func (p place) unchanged(st unix.Stat_t) bool {
	here, err := p.stat(unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && here.Dev == st.Dev && here.Ino == st.Ino && here.Size == st.Size && here.Mtim == st.Mtim
}
