package auth

import (
	"fmt"
	"net"
	"unsafe"

	"execserver/internal/sys"

	"golang.org/x/sys/unix"
)

// PeersKnown reports whether the system says who connects to a unix socket.
const PeersKnown = true

// peerOf asks the system who connected. The answer is from the moment of connecting, so
// passing the socket on gains nothing.
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
