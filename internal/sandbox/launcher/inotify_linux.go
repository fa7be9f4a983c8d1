package launcher

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limitInotify leaves the command half of a user's inotify instances and watches, so that
// others can still watch files. The limits of a user namespace hold only in it. Where
// they cannot be written, as in a container, there are none.
func (s *Spec) limitInotify() {
	if !s.OwnUsers {
		return // the limits would apply to the whole machine
	}
	for _, name := range []string{"instances", "watches"} {
		var text [32]byte
		n, err := onFile("/proc/sys/fs/inotify/max_user_"+name, unix.O_RDONLY, func(fd int) (int, error) { return unix.Read(fd, text[:]) })
		if err != nil {
			continue
		}
		limit, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
		if err != nil {
			continue
		}
		half := strconv.Itoa(limit / 2)
		_, _ = onFile("/proc/sys/user/max_inotify_"+name, unix.O_WRONLY, func(fd int) (int, error) { return unix.Write(fd, []byte(half)) })
	}
}

func onFile(path string, mode int, do func(fd int) (int, error)) (int, error) {
	fd, err := unix.Open(path, mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return do(fd)
}
