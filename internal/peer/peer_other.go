//go:build !linux

package peer

import (
	"net"
	"net/netip"
)

// CanFindTCP returns ErrUnsupported.
func CanFindTCP() error { return ErrUnsupported }

// FindTCP returns ErrUnsupported.
func FindTCP(_, _ netip.AddrPort) (Socket, error) { return Socket{}, ErrUnsupported }

// IsLocal returns ErrUnsupported.
func IsLocal(netip.Addr) (bool, error) { return false, ErrUnsupported }

// Holders finds no process on this system.
type Holders struct{}

// Namespace returns the process namespace of a process that holds a socket.
func (*Holders) Namespace(uint64) (string, bool) { return "", false }

// OwnNamespace is the process namespace of this program.
func OwnNamespace() string { return "" }

// UnixNamespace returns the process namespace of the process that has connected.
func UnixNamespace(net.Conn) (string, error) { return "", ErrUnsupported }

// MadeElsewhere returns false: this system does not report it.
func (Socket) MadeElsewhere() bool { return false }
