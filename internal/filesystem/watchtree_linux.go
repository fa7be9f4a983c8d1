package filesystem

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// watchNode is a watched directory. While events wait to be read, its position in the tree
// is out of date: the path may lead to another directory by now. So a function that uses the
// path lets the kernel confirm it, and opens entries relative to the open directory.
type watchNode struct {
	wd       int32
	name     string
	parent   *watchNode // nil for the root, and for a directory that was moved out
	children map[string]*watchNode

	// unscanned is set if the path was stale when the directory should have been read. The
	// event of the move will arrive; then the directory is read.
	unscanned bool
}

func (n *watchNode) detach() {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	n.parent = nil
}

// pathOf returns the path of a directory, and whether it is in the tree.
func (s *watchSource) pathOf(n *watchNode) (string, bool) {
	if n.parent == nil {
		return n.name, n == s.root
	}
	var names []string
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	slices.Reverse(names)
	return join(n.name, strings.Join(names, "/")), n == s.root
}

// open opens the directory of a node. It reports false if the path leads to another
// directory. If that cannot be known, it reports an overflow.
func (s *watchSource) open(n *watchNode) (*os.File, bool) {
	path, _ := s.pathOf(n)
	dir, err := openDirectory(path)
	if err != nil {
		if !isStale(err) {
			s.journal.overflow(path)
		}
		return nil, false
	}
	wd, err := s.watch(dir, path)
	switch {
	case err != nil:
		s.journal.overflow(path)
	case wd == n.wd:
		return dir, true
	case s.nodes[wd] == nil:
		s.unwatch(wd)
	}
	dir.Close()
	return nil, false
}

// isStale reports whether opening a directory failed because its path is out of
// date. An event will report the move.
func isStale(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// add examines a name in n that is a new directory. With report, it reports the entries that
// it finds.
func (s *watchSource) add(n *watchNode, name string, report bool) {
	dir, ok := s.open(n)
	if !ok {
		n.unscanned = true
		return
	}
	defer dir.Close()
	s.addIn(n, dir, name, report)
}

// addIn watches a directory in n and all below it. It does not rely on the tree: the
// kernel gives each directory one watch descriptor, even if it has been renamed.
func (s *watchSource) addIn(n *watchNode, dir *os.File, name string, report bool) {
	child := &watchNode{name: name, parent: n, children: map[string]*watchNode{}}
	path, _ := s.pathOf(child)
	fd, err := pathAt{dirfd: int(dir.Fd()), name: name}.open(unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		if !isStale(err) {
			s.journal.overflow(path)
		}
		return
	}
	opened := newFile(fd, path)
	defer opened.Close()
	wd, err := s.watch(opened, path)
	if err != nil {
		s.journal.overflow(path)
		return
	}
	old, known := n.children[name], s.nodes[wd]
	if known != nil {
		if old == known {
			s.rescan(known)
			return
		}
		if there, inTree := s.pathOf(known); inTree && mountedTwice(there, opened) {
			s.journal.overflow(path) // the kernel reports its changes under one name only
			return
		}
		known.detach()
	}
	if old != nil {
		old.detach()
		s.drop(old)
	}
	switch {
	case known != nil: // moved here, with everything in it
		if known == s.moving {
			s.moving = nil
		}
		known.name, known.parent = name, n
		n.children[name] = known
		s.rescan(known)
	case len(s.nodes) >= s.options.MaxDirectories:
		s.unwatch(wd)
		s.journal.overflow(path)
	default:
		child.wd = wd
		s.nodes[wd], n.children[name] = child, child
		s.scan(child, opened, report)
	}
}

// scan looks for directories in a directory that is watched already, so it misses none: a
// later one is an event.
func (s *watchSource) scan(n *watchNode, dir *os.File, report bool) {
	path, _ := s.pathOf(n)
	var below []string
	for s.ctx.Err() == nil {
		entries, err := dir.ReadDir(directoryBatch)
		for _, e := range entries {
			if report {
				s.journal.record(join(path, e.Name()), Created)
			}
			if e.Type()&fs.ModeType == fs.ModeDir {
				below = append(below, e.Name())
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			s.journal.overflow(path)
			break
		}
	}
	for _, name := range below {
		if s.ctx.Err() != nil {
			return
		}
		s.addIn(n, dir, name, report)
	}
}

// rescan reads the directories at and below n that could not be read while their paths were
// stale.
func (s *watchSource) rescan(n *watchNode) {
	if n.unscanned {
		if dir, ok := s.open(n); ok {
			n.unscanned = false
			s.scan(n, dir, true)
			dir.Close()
		}
		return
	}
	for _, child := range n.children {
		s.rescan(child)
	}
}

// drop stops watching a directory that is no longer in the tree.
func (s *watchSource) drop(n *watchNode) {
	for _, child := range n.children {
		child.parent = nil
		s.drop(child)
	}
	if s.nodes[n.wd] == n {
		delete(s.nodes, n.wd)
		s.unwatch(n.wd)
	}
}

// watch starts to watch a directory, unless it is watched already, and returns the watch
// descriptor.
func (s *watchSource) watch(dir *os.File, path string) (wd int32, err error) {
	if haveProc() {
		path = fdPath(int(dir.Fd()))
	}
	return s.addWatch(path, watchMask)
}

func (s *watchSource) unwatch(wd int32) {
	if s.rootPath.directories[wd] != nil {
		return
	}
	if raw, err := s.inotify.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.InotifyRmWatch(int(fd), uint32(wd)) })
	}
}

// mountedTwice reports whether an open directory is also mounted at path. Otherwise it has
// been moved.
func mountedTwice(path string, dir *os.File) bool {
	one, err := pathAt{dirfd: unix.AT_FDCWD, name: path}.mountedAt(0)
	if err != nil {
		return false
	}
	other, err := pathAt{dirfd: int(dir.Fd())}.mountedAt(unix.AT_EMPTY_PATH)
	return err == nil && one.Ino == other.Ino && one.Dev_major == other.Dev_major && one.Dev_minor == other.Dev_minor &&
		one.Mnt_id != other.Mnt_id
}

func (p pathAt) mountedAt(flags int) (unix.Statx_t, error) {
	var stx unix.Statx_t
	_, err := retry(func() (int, error) {
		return 0, sys.Statx(p.dirfd, p.name, flags|unix.AT_NO_AUTOMOUNT, unix.STATX_INO|unix.STATX_MNT_ID, &stx)
	})
	return stx, err
}
