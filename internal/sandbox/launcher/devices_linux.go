package launcher

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// deviceNames are the devices of every sandbox.
var deviceNames = []string{"null", "zero", "full", "random", "urandom", "tty"}

// deviceAttributes let a command read and write a device as usual. For a device, the
// kernel applies MOUNT_ATTR_RDONLY only to the mode, owner and times of its node, which
// belongs to the machine.
const deviceAttributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC

// protectDevices makes the nodes that another program has mounted read-only. An ordinary
// user owns none of them, and may not have the right to mount either.
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

// reopenDevices reopens the devices and the terminal among the command's streams by their
// names in the sandbox. The server opened them where their nodes can be changed: a command
// could let every user read the terminal's input.
func (s *Spec) reopenDevices() *failure {
	if s.Base == BaseNone && !s.Check {
		return nil
	}
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		for _, name := range append(slices.Clone(deviceNames), "console") {
			var device unix.Stat_t
			if unix.Stat("/dev/"+name, &device) != nil || device.Rdev != st.Rdev {
				continue
			}
			if err := reopen(fd, "/dev/"+name); err != nil && err != unix.EIO { // it has hung up
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

// cloneTerminal copies the mount of the first terminal among the streams, so that it has a
// name in the new /dev. Without the copy, only the name is missing.
func cloneTerminal() tree {
	for fd := range 3 {
		name := terminalName(fd)
		if name == "" {
			continue
		}
		if t, err := clone(name, deviceAttributes); err == nil {
			return t
		}
	}
	return -1
}

// terminalName returns the path of the terminal of a descriptor, or "".
func terminalName(fd int) string {
	var b [64]byte
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), b[:])
	if err != nil || !strings.HasPrefix(string(b[:n]), "/dev/pts/") {
		return ""
	}
	return string(b[:n])
}

// makeDevices creates a /dev with harmless devices.
func (v *view) makeDevices() *failure {
	const dev = newRoot + "/dev"
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", dev, "tmpfs", flags, "mode=0755"); err != nil {
		return &failure{"make /dev", err}
	}
	for name, t := range v.devices {
		err := makeFile(unix.AT_FDCWD, dev+"/"+name, 0o666)
		if err == nil {
			err = t.attachAt(dev + "/" + name)
		}
		if err != nil {
			return &failure{"make /dev/" + name, err}
		}
	}
	for _, link := range [][2]string{
		{"/proc/self/fd", "fd"},
		{"/proc/self/fd/0", "stdin"},
		{"/proc/self/fd/1", "stdout"},
		{"/proc/self/fd/2", "stderr"},
		{"pts/ptmx", "ptmx"},
	} {
		if err := unix.Symlink(link[0], dev+"/"+link[1]); err != nil {
			return &failure{"make /dev/" + link[1], err}
		}
	}
	for _, m := range []struct{ name, kind, options string }{
		{"pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,max=256"}, // all sandboxes share what the kernel allows
		{"shm", "tmpfs", "mode=1777"},
	} {
		err := unix.Mkdir(dev+"/"+m.name, 0o755)
		if err == nil {
			err = unix.Mount(m.kind, dev+"/"+m.name, m.kind, flags, m.options)
		}
		if err != nil {
			return &failure{"make /dev/" + m.name, err}
		}
	}
	if v.console >= 0 {
		err := makeFile(unix.AT_FDCWD, dev+"/console", 0o600)
		if err == nil {
			err = v.console.attachAt(dev + "/console")
		}
		if err != nil {
			return &failure{"make /dev/console", err}
		}
	}
	return nil
}

// Self is the Program of a Spec that stands for this program.
const Self = "/proc/self/exe"

// SelfInside is the path of this program in the new /dev.
const SelfInside = "/dev/.exec-server"

// cloneSelf copies the mount of this program, read-only. A program can reach the mount
// from which it was executed by /proc/self/exe, and the mount of the launcher is the
// machine's, where the program may be writable. It returns -1 if another program is at
// its path by now.
func cloneSelf() tree {
	var b [unix.PathMax]byte
	n, err := unix.Readlink(Self, b[:])
	if err != nil {
		return -1
	}
	var st unix.Stat_t
	if err := unix.Stat(Self, &st); err != nil {
		return -1
	}
	t, err := cloneChecked(Mount{Path: string(b[:n]), Kind: MountReadOnly, Device: uint64(st.Dev), Inode: st.Ino})
	if err != nil {
		return -1
	}
	return t
}

// attachSelf attaches the copy at SelfInside.
func (v *view) attachSelf() *failure {
	if v.self < 0 {
		return nil
	}
	const path = newRoot + SelfInside
	err := makeFile(unix.AT_FDCWD, path, 0o444)
	if err == nil {
		err = v.self.attachAt(path)
	}
	if err != nil {
		return &failure{"take this program along", err}
	}
	v.spec.Program = SelfInside
	return nil
}
