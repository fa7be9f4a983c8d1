package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// ensureSocketMode sets the mode of the socket just bound to path, if the umask has changed
// it. A user who may write to the directory may have replaced the socket, for example with
// a link to another file.
func ensureSocketMode(path string, mode fs.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	ours := st.Mode&unix.S_IFMT == unix.S_IFSOCK && int(st.Uid) == os.Geteuid()
	switch {
	case fs.FileMode(st.Mode).Perm() == mode:
		return nil
	case !ours:
		return errors.New("somebody has put something else in its place; choose a directory that nobody else can write to")
	}
	// Not every kernel in use can change the mode of such a descriptor.
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// PeersSupported reports whether the system identifies the peer of a unix socket.
const PeersSupported = true

// peerOf returns the user that connected. The kernel records it at connect, so passing the
// socket on does not change it.
func peerOf(conn net.Conn) (p peer, err error) {
	err = sys.OnDescriptor(conn, func(fd int) error {
		credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return fmt.Errorf("ask for the peer's credentials: %w", err)
		}
		p.uid, p.gids = uint(credentials.Uid), []uint{uint(credentials.Gid)}
		groups, err := peerGroups(fd)
		for _, gid := range groups {
			p.gids = append(p.gids, uint(gid))
		}
		return err
	})
	return p, err
}

// peerGroups returns the supplementary groups of a peer; none before Linux 4.13.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(4 * len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == unix.ERANGE && int(size) > 4*len(groups):
			groups = make([]uint32, size/4)
		case errno == unix.ENOPROTOOPT:
			return nil, nil
		case errno != 0:
			return nil, fmt.Errorf("ask for the peer's groups: %w", errno)
		default:
			return groups[:size/4], nil
		}
	}
}
