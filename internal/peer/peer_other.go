//go:build !linux

package peer

import (
	"net"
	"net/netip"
)

// CanFindTCP reports why FindTCP cannot work here.
func CanFindTCP() error { return ErrUnsupported }

// FindTCP finds the peer's socket of a connection; here it never does.
func FindTCP(_, _ netip.AddrPort) (Socket, error) { return Socket{}, ErrUnsupported }

// Holders finds the processes that hold sockets; here it finds none.
type Holders struct{}

// Namespace returns the process namespace of a process that holds a socket.
func (*Holders) Namespace(uint64) (string, bool) { return "", false }

// OwnNamespace is the process namespace of this program.
func OwnNamespace() string { return "" }

// UnixNamespace returns the process namespace of the process that has connected.
func UnixNamespace(net.Conn) (string, error) { return "", ErrUnsupported }

// MadeElsewhere reports whether nothing that this program has started can have made
// a socket; here it never knows.
func (Socket) MadeElsewhere() bool { return false }
