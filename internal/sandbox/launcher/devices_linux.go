package launcher

import "golang.org/x/sys/unix"

// deviceNames are the devices of every sandbox.
var deviceNames = []string{"null", "zero", "full", "random", "urandom", "tty"}

// deviceAttributes let a device be read and written as ever: the kernel heeds
// MOUNT_ATTR_RDONLY for the mode, owner and times of its node alone, which are
// those of the machine.
const deviceAttributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC

// protectDevices makes the nodes that somebody else has mounted read-only. An
// ordinary user owns none of them, and may have no right to mount either.
func protectDevices() *failure {
	if unix.Geteuid() != 0 {
		return nil
	}
	for _, name := range append(deviceNames, "console") {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		err := unix.MountSetattr(unix.AT_FDCWD, "/dev/"+name, unix.AT_SYMLINK_NOFOLLOW, &attr)
		if err != nil && err != unix.ENOENT {
			return &failure{"protect /dev/" + name, err}
		}
	}
	return nil
}

// reopenDevices opens the devices among the streams of the command again, by their
// names inside. The server has opened them where their nodes can be changed.
func (s *Spec) reopenDevices() *failure {
	if s.Base == BaseNone && !s.Check {
		return nil
	}
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		for _, name := range deviceNames {
			var device unix.Stat_t
			if unix.Stat("/dev/"+name, &device) != nil || device.Rdev != st.Rdev {
				continue
			}
			if err := reopen(fd, "/dev/"+name); err != nil {
				return &failure{"open /dev/" + name, err}
			}
		}
	}
	return nil
}

func reopen(fd int, path string) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	again, err := unix.Open(path, flags&(unix.O_ACCMODE|unix.O_APPEND|unix.O_NONBLOCK)|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(again)
	return unix.Dup3(again, fd, 0)
}
