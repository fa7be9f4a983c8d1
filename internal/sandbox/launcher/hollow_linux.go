package launcher

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// makeHollow creates the mount for a hollow directory.
func (v *view) makeHollow() (tree, error) {
	dir := scratch + "/hollow" + strconv.Itoa(len(v.hollows))
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return -1, err
	}
	t, err := clone(dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(uintptr(t), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	v.hollows = append(v.hollows, fd)
	return t, nil
}

// inHollow reports whether a path is in a hollow directory, where its mount point must be
// created.
func (s *Spec) inHollow(path string) bool {
	for _, m := range s.Mounts {
		if m.Kind == MountHollow && strings.HasPrefix(path, m.Path+"/") {
			return true
		}
	}
	return false
}
