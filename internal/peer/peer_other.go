//go:build !linux

package peer

import (
	"context"
	"net"
	"net/netip"
)

// CanFindTCP returns ErrUnsupported.
func CanFindTCP() error { return ErrUnsupported }

// FindTCP returns ErrUnsupported.
func FindTCP(_, _ netip.AddrPort) (Socket, error) { return Socket{}, ErrUnsupported }

// IsLocal returns ErrUnsupported.
func IsLocal(netip.Addr) (bool, error) { return false, ErrUnsupported }

// Judge judges nobody on this system, which has no sandboxes.
type Judge struct {
	Proven    bool
	Addresses Addresses
}

// Confines does nothing: nobody is confined.
func (*Judge) Confines() {}

// TCP returns nil.
func (*Judge) TCP(Socket) error { return nil }

// Unix returns nil.
func (*Judge) Unix(net.Conn) error { return nil }

// CanJudge returns nil: nobody is confined.
func CanJudge() error { return nil }

// CheckServer returns nil: this system does not tell who has accepted a connection.
func CheckServer(context.Context, net.Conn, string) error { return nil }
