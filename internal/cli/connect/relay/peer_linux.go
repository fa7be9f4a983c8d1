package relay

import (
	"net"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// peerOf returns the process that listens at the other end of a connection.
func peerOf(conn *net.UnixConn) (pid int, err error) {
	err = sys.OnDescriptor(conn, func(fd int) error {
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			pid = int(peer.Pid)
		}
		return err
	})
	return pid, err
}

// inheritNothing keeps inherited descriptors from the server.
func inheritNothing() error { return sys.CloseOnExecFrom(3) }
