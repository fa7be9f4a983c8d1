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

// Checker checks nothing: this system has no sandboxes.
type Checker struct {
	Authenticated bool
	Isolated      func(pid int) bool
	Addresses     Addresses
}

// SetConfines does nothing.
func (*Checker) SetConfines() {}

// CheckTCP accepts every peer.
func (*Checker) CheckTCP(Socket) (seen bool, err error) { return true, nil }

// AwaitRead returns nil.
func (Socket) AwaitRead(context.Context) error { return nil }

// CheckUnix returns nil.
func (*Checker) CheckUnix(net.Conn) error { return nil }

// CanCheck returns nil: no process is confined.
func CanCheck() error { return nil }

// CheckServer returns nil: this system does not identify the process that accepted a
// connection.
func CheckServer(context.Context, net.Conn, string) error { return nil }
