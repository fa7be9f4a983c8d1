//go:build darwin || freebsd

package auth

import (
	"fmt"
	"net"

	"execserver/internal/sys"

	"golang.org/x/sys/unix"
)

// PeersSupported reports whether the system identifies the peer of a unix socket.
const PeersSupported = true

// peerOf returns the user that connected.
func peerOf(conn net.Conn) (p peer, err error) {
	err = sys.OnDescriptor(conn, func(fd int) error {
		credentials, err := unix.GetsockoptXucred(fd, solLocal, unix.LOCAL_PEERCRED)
		if err != nil {
			return fmt.Errorf("ask for the peer's credentials: %w", err)
		}
		p.uid = uint(credentials.Uid)
		for _, gid := range credentials.Groups[:min(int(credentials.Ngroups), len(credentials.Groups))] {
			p.gids = append(p.gids, uint(gid))
		}
		return nil
	})
	return p, err
}

// solLocal is the level of options of unix sockets (sys/un.h).
const solLocal = 0
