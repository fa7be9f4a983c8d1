package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/seccomp"
)

// landlockABI returns the kernel's version of Landlock, or 0.
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// Versions of Landlock that added features.
const (
	abiRefer    = 2
	abiTruncate = 3
	abiTCP      = 4
	abiIoctl    = 5
	abiScope    = 6
)

const (
	landlockWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
	landlockRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// The rights that a rule about a file may grant.
	landlockOnFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// landlock applies the rules that the kernel supports: no signals to other processes, no
// abstract sockets of others, and no TCP without a network. With LandlockOnly it also confines
// files, but cannot protect anything in a writable directory. Otherwise it covers what the
// mounts do not. For a command that keeps its capabilities it only denies TCP and, as any
// ruleset does, access to the memory of processes outside, which have sockets.
func (s *Spec) landlock(abi int) *failure {
	if s.LandlockOnly && abi < abiTruncate {
		return &failure{"confine files by Landlock", errors.New("the kernel cannot confine truncation, which needs Linux 6.2")}
	}
	attr := unix.LandlockRulesetAttr{}
	switch {
	case s.KeepRights && abi >= abiRefer && abi < abiTCP:
		// This kernel has only rules about files. REFER is the right that can be handled and
		// allowed everywhere with the least effect: the command can no longer mount.
		attr.Handled_access_fs = unix.LANDLOCK_ACCESS_FS_REFER
	case s.KeepRights:
	case s.LandlockOnly:
		attr.Handled_access_fs = landlockWrite | landlockRead
		if abi >= abiIoctl {
			attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
		}
	case s.Base != BaseNone && abi >= abiRefer:
		attr.Handled_access_fs = landlockOpen
	}
	if abi >= abiTCP && s.Network == seccomp.NetworkNone {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= abiScope && !s.KeepRights {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	if attr == (unix.LandlockRulesetAttr{}) {
		return nil
	}
	size := unsafe.Sizeof(attr)
	if abi < abiScope {
		size = unsafe.Offsetof(attr.Scoped)
	}
	if abi < abiTCP {
		size = unsafe.Offsetof(attr.Handled_access_net)
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return &failure{"make the rules of Landlock", errno}
	}
	defer unix.Close(int(rules))
	switch attr.Handled_access_fs {
	case landlockOpen:
		if err := s.allowOpening(int(rules)); err != nil {
			return err
		}
	case unix.LANDLOCK_ACCESS_FS_REFER:
		if err := landlockAllow(int(rules), "/", unix.LANDLOCK_ACCESS_FS_REFER); err != nil {
			return &failure{"allow to rename", err}
		}
	}
	for _, path := range s.LandlockRead {
		if err := s.allowReading(int(rules), path); err != nil {
			return &failure{"allow to read " + path, err}
		}
	}
	writable := s.Landlock
	if s.LandlockOnly && s.Terminal {
		writable = append(writable, terminalName(0))
	}
	for _, path := range writable {
		if err := landlockAllow(int(rules), path, attr.Handled_access_fs); err != nil {
			return &failure{"allow to write " + path, err}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return &failure{"apply the rules of Landlock", errno}
	}
	return nil
}

// landlockOpen covers what the mounts leave open: a program can write to a FIFO on a
// read-only mount. The mounts decide about renaming and linking, but any rules about
// files refuse them between directories unless they allow REFER.
const landlockOpen = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REFER

// allowOpening allows opening writable paths for writing.
func (s *Spec) allowOpening(rules int) *failure {
	paths := []string{"/dev", "/proc"} // both are the sandbox's own
	if s.Base == BaseWritable {
		paths = []string{"/"}
	}
	for _, m := range s.Mounts {
		if m.Kind == MountWritable {
			paths = append(paths, m.Path)
		}
	}
	if err := landlockAllow(rules, "/", unix.LANDLOCK_ACCESS_FS_REFER); err != nil {
		return &failure{"allow to rename", err}
	}
	for _, path := range paths {
		if err := landlockAllow(rules, path, landlockOpen); err != nil {
			return &failure{"allow to write " + path, err}
		}
	}
	// The terminal has no path in the sandbox, only descriptors.
	for fd := range 3 {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			continue
		}
		if err := landlockAllowAt(rules, fd, unix.LANDLOCK_ACCESS_FS_WRITE_FILE); err != nil {
			return &failure{"allow to write to the terminal", err}
		}
	}
	return nil
}

// allowReading allows reading a path and everything below it, except s.LandlockHide. A rule
// always covers everything below a directory. So for a directory that contains a hidden path,
// allowReading adds a rule for each of the other existing entries, and one to list names.
func (s *Spec) allowReading(rules int, path string) error {
	leads := false
	for _, hidden := range s.LandlockHide {
		if isBelow(path, hidden) {
			return nil
		}
		leads = leads || isBelow(hidden, path)
	}
	if !leads {
		return landlockAllow(rules, path, landlockRead)
	}
	if err := landlockAllow(rules, path, unix.LANDLOCK_ACCESS_FS_READ_DIR); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil // the command cannot read it either
	}
	for _, entry := range entries {
		if entry.Type() == os.ModeSymlink {
			continue // the target has a rule of its own
		}
		if err := s.allowReading(rules, filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// isBelow reports whether a clean path is a directory or something in it.
func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// landlockAllow allows access to the file at a path, and to everything below it. It does not
// follow a link at the end, apart from those in /proc.
func landlockAllow(rules int, path string, access uint64) error {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !isBelow(path, "/proc") {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(path, flags, 0)
	if err == unix.ENOENT {
		return nil // nothing to allow
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landlockOnFiles
	}
	return landlockAllowAt(rules, fd, access)
}

// landlockAllowAt allows access to the file of a descriptor.
func landlockAllowAt(rules, fd int, access uint64) error {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
