package launcher

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// landlockABI is the version of Landlock that the kernel has; 0: none.
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// Versions of Landlock that brought something.
const (
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
	// onFiles is what a rule about a file may grant.
	landlockOnFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// landlock adds what the kernel has of Landlock: no signals to and no abstract
// sockets of others, and no TCP where the network is restricted. About files it
// is used only where nothing else confines them: it cannot protect anything in a
// directory that may be written.
func (s *Spec) landlock() *failure {
	abi := landlockABI()
	if s.LandlockOnly && abi < abiTruncate {
		return &failure{"confine files by Landlock", errors.New("the kernel has none that confines truncation (6.2 or later)")}
	}
	if s.KeepRights {
		return nil
	}
	attr := unix.LandlockRulesetAttr{}
	if s.LandlockOnly {
		attr.Handled_access_fs = landlockWrite | landlockRead
	}
	if abi >= abiTCP && s.RestrictNetwork {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= abiScope {
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
	for _, path := range s.LandlockRead {
		if err := landlockAllow(int(rules), path, landlockRead); err != nil {
			return &failure{"allow to read " + path, err}
		}
	}
	for _, path := range s.Landlock {
		if err := landlockAllow(int(rules), path, landlockRead|landlockWrite); err != nil {
			return &failure{"allow to write " + path, err}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return &failure{"apply the rules of Landlock", errno}
	}
	return nil
}

func landlockAllow(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
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
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
