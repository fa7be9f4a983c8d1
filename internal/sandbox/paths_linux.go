package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// The same file may have several paths: through a bind mount, such as a workspace of this
// server, or because its file system is mounted twice. A sandbox hides or protects a file at
// all of its paths.

// mountTable is the mount table of this program.
type mountTable struct {
	list []procfs.Mount
	of   map[string][]*procfs.Mount // by device
}

func readMounts() (*mountTable, error) {
	list, err := procfs.Mounts()
	if err != nil {
		return nil, err
	}
	t := &mountTable{list: list, of: make(map[string][]*procfs.Mount)}
	for i := range list {
		m := &list[i]
		if !within(m.Point, "/proc") { // every sandbox has its own
			t.of[m.Device] = append(t.of[m.Device], m)
		}
	}
	return t, nil
}

// names returns all paths of a file. The first one is path, which must have no links. For a
// directory of which only parts are mounted elsewhere, names returns the paths of the parts,
// including those on other file systems.
func (t *mountTable) names(path string) []string {
	names := []string{path}
	add := func(name string) {
		if !slices.ContainsFunc(names, func(known string) bool { return within(name, known) }) {
			names = append(names, name)
		}
	}
	file, err := statx(path)
	if err != nil {
		return names
	}
	if m := t.mountOf(path, file); m != nil {
		t.otherNames(m, join(m.Root, below(path, m.Point)), path, add)
	}
	if file.Mode&unix.S_IFMT == unix.S_IFDIR {
		for i := range t.list {
			if m := &t.list[i]; m.Point != path && within(m.Point, path) && !within(m.Point, "/proc") {
				t.otherNames(m, m.Root, m.Point, add)
			}
		}
	}
	return names
}

// otherNames calls add with the other paths of a file: real is its path within the file
// system mounted at m, and path is its path in the mount namespace.
func (t *mountTable) otherNames(m *procfs.Mount, real, path string, add func(string)) {
	for _, other := range t.of[m.Device] {
		switch {
		case other.ID == m.ID:
		case within(real, other.Root):
			name := join(other.Point, below(real, other.Root))
			if name == path {
				continue
			}
			if file, err := statx(path); err == nil && isSame(name, file) { // another mount may cover it
				add(name)
			}
		case within(other.Root, real) && other.Point != "/":
			if file, err := statx(other.Point); err == nil && (!hasMountID(file) || file.Mnt_id == other.ID) {
				add(other.Point)
			}
		}
	}
}

// everyName returns the paths of a file in a mount, also those that another mount covers or where
// another file is by now. The first one is path, at which the file has been opened.
func (t *mountTable) everyName(path string, m *procfs.Mount) []string {
	names := []string{path}
	real := join(m.Root, below(path, m.Point))
	for _, other := range t.of[m.Device] {
		if other.ID != m.ID && within(real, other.Root) {
			names = append(names, join(other.Point, below(real, other.Root)))
		}
	}
	return names
}

// mountOf returns the mount that contains a file.
func (t *mountTable) mountOf(path string, file *unix.Statx_t) (found *procfs.Mount) {
	for i := range t.list {
		m := &t.list[i]
		switch {
		case hasMountID(file):
			if m.ID == file.Mnt_id {
				return m
			}
		case within(path, m.Point) && (found == nil || len(m.Point) >= len(found.Point)):
			found = m
		}
	}
	return found
}

// statx describes a file. It does not follow a link at the end.
func statx(path string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_INO|unix.STATX_MNT_ID, &st)
	return &st, err
}

// statxOpen describes an open file.
func statxOpen(f *os.File) (*unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_MNT_ID, &st)
	return &st, err
}

// hasMountID reports whether the kernel has reported the mount of a file, as it does since
// 5.8.
func hasMountID(file *unix.Statx_t) bool { return file.Mask&unix.STATX_MNT_ID != 0 }

// isSame reports whether a path leads to a file, by device and inode. Some file systems, such as
// btrfs, have more devices than mountinfo lists.
func isSame(path string, file *unix.Statx_t) bool {
	found, err := statx(path)
	return err == nil && found.Ino == file.Ino && found.Dev_major == file.Dev_major && found.Dev_minor == file.Dev_minor
}

// below returns the part of a path that is below a directory.
func below(path, dir string) string {
	if dir == "/" {
		return path
	}
	return strings.TrimPrefix(path, dir)
}

func join(dir, rest string) string { return filepath.Clean(dir + "/" + rest) }

// restrictOtherNames repeats the rules that take access away for the other paths of their
// files. An entry of the policy that grants another path, or something in it, takes
// precedence.
func (r *resolver) restrictOtherNames() {
	granted := r.grants()
	for _, rule := range slices.Clone(r.rules) {
		if rule.path == "/" || !rule.hollow && rule.access != protocol.AccessDeny && !r.restricts(rule) {
			continue
		}
		path, name := rule.path, ""
		if r.missing[path] { // commands with access to its directory could create it
			path, name = filepath.Split(path)
			path = filepath.Clean(path)
		}
		for _, other := range r.mounts.names(path)[1:] {
			other = filepath.Join(other, name)
			around := r.access(other)
			switch {
			case r.has(other), around == 0, around == protocol.AccessDeny, containsAny(other, granted):
			case rule.hollow:
				r.hollow(other)
			case rule.access == protocol.AccessDeny, around == protocol.AccessWrite:
				if r.missing[rule.path] {
					r.missing[other] = true
				}
				r.addFound(other, rule.access, rule.pattern)
				added := &r.rules[r.index[other]]
				added.optional, added.link = rule.optional, rule.link
			}
		}
	}
}

// grants returns the paths that rules make readable or writable.
func (r *resolver) grants() (paths []string) {
	for _, rule := range r.rules {
		if rule.access == protocol.AccessRead || rule.access == protocol.AccessWrite {
			paths = append(paths, rule.path)
		}
	}
	return paths
}

// containsAny reports whether one of the paths is in a directory.
func containsAny(dir string, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return within(path, dir) })
}

// restricts reports whether a rule makes something read-only in a directory that an outer
// rule makes writable.
func (r *resolver) restricts(rule rule) bool {
	return rule.access == protocol.AccessRead && r.access(filepath.Dir(rule.path)) == protocol.AccessWrite
}

// inode returns the inode number of a file.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// changeTime returns the ctime of a file, which programs cannot set.
func changeTime(info fs.FileInfo) time.Time {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(st.Ctim.Unix())
	}
	return info.ModTime()
}

// isOwn reports whether a file belongs to this program's user.
func isOwn(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// isRoots reports whether a file belongs to root.
func isRoots(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}

// isForeign reports whether another user who may write in the directory, as in /tmp,
// created the file. Such a file must not keep a command from starting.
func isForeign(path string, info fs.FileInfo) bool {
	if isOwn(info) {
		return false
	}
	dir, err := os.Lstat(filepath.Dir(path))
	return err == nil && (!isOwn(dir) || dir.Mode().Perm()&0o022 != 0)
}

// walked is the result of following a path.
type walked struct {
	real    string // the path without links; up to the missing name, or to the directory of what could not be followed
	missing bool
	crossed string // the first link on the path that a confined command can change
	foreign bool   // that link belongs to another user
	links   []launcher.Link
	err     error
}

// maxLinks is the maximum number of links on a path, as in the kernel.
const maxLinks = 40

// walk follows a path from the root directory.
func (r *resolver) walk(path string) (w walked) {
	rest := strings.Split(strings.Trim(path, "/"), "/")
	w.real = "/"
	changes := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			w.real = filepath.Dir(w.real)
			continue
		}
		next := filepath.Join(w.real, name)
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			w.real, w.missing = next, true
			return w
		case errors.Is(err, fs.ErrPermission):
			// A process inside cannot follow it either, because it has no more rights.
			w.real = filepath.Join(append([]string{next}, rest...)...)
			w.missing = true
			return w
		case err != nil:
			w.err = err
			return w
		case info.Mode()&fs.ModeSymlink == 0:
			w.real = next
			continue
		}
		target, err := os.Readlink(next)
		if (errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist)) && changes < maxLinks {
			changes++ // another file has the name since Lstat
			rest = append([]string{name}, rest...)
			continue
		}
		if err != nil {
			w.err = err
			return w
		}
		if len(w.links) == maxLinks {
			w.err = &fs.PathError{Op: "follow the link", Path: next, Err: syscall.ELOOP}
			return w
		}
		if w.crossed == "" && r.writable(w.real) && (r.outer == nil || r.outer.access(w.real) == protocol.AccessWrite) {
			w.crossed, w.foreign = next, isForeign(next, info)
		}
		w.links = append(w.links, launcher.Link{Path: next, Target: target})
		if filepath.IsAbs(target) {
			w.real = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return w
}
