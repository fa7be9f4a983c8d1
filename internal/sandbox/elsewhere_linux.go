package sandbox

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/protocol"
)

// The same file may be mounted at several places: by a bind mount, such as a workspace of
// this server, or because its file system is mounted twice. What a sandbox hides or
// protects, it hides or protects at all of them.

// mountTable knows the mounts of this program.
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

// names returns the paths at which a file is mounted. The first one is path, which must
// have no links. If a directory is mounted only in part, names returns the paths of its
// parts, also of those that are on another file system.
func (t *mountTable) names(path string) []string {
	names := []string{path}
	add := func(name string) {
		if !slices.ContainsFunc(names, func(known string) bool { return within(name, known) }) {
			names = append(names, name)
		}
	}
	file, err := look(path)
	if err != nil {
		return names
	}
	if m := t.holding(path, file); m != nil {
		t.others(m, join(m.Root, below(path, m.Point)), path, add)
	}
	if file.Mode&unix.S_IFMT == unix.S_IFDIR {
		for i := range t.list {
			if m := &t.list[i]; m.Point != path && within(m.Point, path) && !within(m.Point, "/proc") {
				t.others(m, m.Root, m.Point, add)
			}
		}
	}
	return names
}

// others calls add with the other places of a file: real is its path on the file system
// that is mounted at m, and path is its path here.
func (t *mountTable) others(m *procfs.Mount, real, path string, add func(string)) {
	for _, other := range t.of[m.Device] {
		switch {
		case other.ID == m.ID:
		case within(real, other.Root):
			name := join(other.Point, below(real, other.Root))
			if name != path && isSame(name, path) { // another mount may cover it
				add(name)
			}
		case within(other.Root, real) && other.Point != "/":
			if file, err := look(other.Point); err == nil && (!numbered(file) || file.Mnt_id == other.ID) {
				add(other.Point)
			}
		}
	}
}

// holding returns the mount in which a file is.
func (t *mountTable) holding(path string, file *unix.Statx_t) (found *procfs.Mount) {
	for i := range t.list {
		m := &t.list[i]
		switch {
		case numbered(file):
			if m.ID == file.Mnt_id {
				return m
			}
		case within(path, m.Point) && (found == nil || len(m.Point) >= len(found.Point)):
			found = m
		}
	}
	return found
}

// look returns what the kernel says about a file. It follows no link at the end.
func look(path string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_INO|unix.STATX_MNT_ID, &st)
	return &st, err
}

// numbered reports whether the kernel says in which mount a file is, as it does from 5.8
// on.
func numbered(file *unix.Statx_t) bool { return file.Mask&unix.STATX_MNT_ID != 0 }

// isSame reports whether two paths lead to the same file. The device and the inode
// decide; some file systems, such as btrfs, have more devices than mountinfo tells.
func isSame(a, b string) bool {
	one, err := look(a)
	if err != nil {
		return false
	}
	other, err := look(b)
	return err == nil && one.Ino == other.Ino && one.Dev_major == other.Dev_major && one.Dev_minor == other.Dev_minor
}

// below returns the part of a path that is below a directory.
func below(path, dir string) string {
	if dir == "/" {
		return path
	}
	return path[len(dir):]
}

func join(dir, rest string) string { return filepath.Clean(dir + "/" + rest) }

// narrowElsewhere repeats the rules that take access away at the other places of their
// files. An entry of the policy that grants another place, or something in it, decides
// about that.
func (r *resolver) narrowElsewhere() {
	granted := r.grants()
	for _, rule := range slices.Clone(r.rules) {
		if rule.path == "/" || !rule.hollow && rule.access != protocol.AccessDeny && !r.narrows(rule) {
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
			case r.has(other), around == 0, around == protocol.AccessDeny, leads(other, granted):
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

// leads reports whether one of the paths is in a directory.
func leads(dir string, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return within(path, dir) })
}

// narrows reports whether a rule makes something read-only in a directory that the rule
// around it makes writable.
func (r *resolver) narrows(rule rule) bool {
	return rule.access == protocol.AccessRead && r.access(filepath.Dir(rule.path)) == protocol.AccessWrite
}
