package launcher

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// checkMounts checks that the mounts made by another program are those of the plan.
func (s *Spec) checkMounts() *failure {
	for _, m := range s.Mounts {
		if m.Kind == MountHidden || m.Kind == MountHollow || m.Optional {
			continue
		}
		fd, err := unix.Open(m.Path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &failure{"look at " + m.Path, moved(err)}
		}
		err = m.check(fd)
		var fs unix.Statfs_t
		if err == nil {
			err = unix.Fstatfs(fd, &fs)
		}
		_ = unix.Close(fd)
		if err == nil && m.Kind == MountReadOnly && fs.Flags&unix.ST_RDONLY == 0 {
			err = errors.New("it can be written, flags " + strconv.FormatInt(fs.Flags, 16))
		}
		if err != nil {
			return &failure{"check " + m.Path, err}
		}
	}
	return protectDevices()
}
