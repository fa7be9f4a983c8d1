// Package peer identifies the process at the other end of a local connection.
//
// A TCP connection carries no information about the process that made it. On Linux the
// kernel knows the peer's socket if it is in the same network namespace: [FindTCP] returns
// its owner. A unix socket carries the identity of the process that connected. A [Checker]
// checks for a listener whether the process at the other end is confined, and [CheckServer]
// checks for a client whether the process that accepted its connection may receive its
// secrets.
//
// [IsLocal] reports whether a future connection would end on this machine.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Socket is the peer's end of a TCP connection within this machine.
type Socket struct {
	// UID is the owner's id in this program's user namespace. It is meaningless if the
	// socket is orphaned.
	UID int
	// Inode identifies the socket. It is 0 if no process holds the socket any more; the
	// kernel then reports root as the owner.
	Inode uint64
	// Group is the id of the control group in which the socket was made, or 0 if the
	// kernel does not report it.
	Group uint64

	unread, unsent int            // bytes that its process has not read, and that the other end does not have
	above          string         // the protocol above TCP, such as mptcp; "" if there is none
	local, remote  netip.AddrPort // as passed to FindTCP
}

// Orphaned reports whether the peer has closed its socket or has exited.
func (s Socket) Orphaned() bool { return s.Inode == 0 }

// ErrNotFound reports that no socket in this network namespace is the other end of the
// connection: the peer is on another machine, in another network namespace, or gone.
var ErrNotFound = errors.New("no socket of this machine is at the other end of the connection")

// ErrUnsupported reports that this system cannot identify the peer of a TCP connection.
var ErrUnsupported = errors.New("the peers of TCP connections cannot be identified on this platform")

// Remedy is part of the text of every ConfinedError and UnknownError: the operator's
// remedy.
const Remedy = "allow confined peers"

const remedy = "; connect from outside, or have the operator of the program that listens " + Remedy

// ConfinedError reports that a peer is confined.
type ConfinedError struct{ how string }

func (e *ConfinedError) Error() string {
	return "this connection comes from a confined process, " + e.how +
		", which could get out through the program that listens" + remedy
}

// UnknownError reports that it cannot be determined whether a peer is confined.
type UnknownError struct{ reason string }

func (e *UnknownError) Error() string {
	return "it cannot be found out whether this connection comes from a confined process: " + e.reason + remedy
}

// IsConfinementError reports whether an error is a ConfinedError or an UnknownError.
func IsConfinementError(err error) bool {
	return errors.As(err, new(*ConfinedError)) || errors.As(err, new(*UnknownError))
}

// ServerError reports that the process that accepted a connection may not receive this
// program's secrets unless its user is named; see [CheckServer].
type ServerError struct {
	User   string // name or number
	reason string
}

func (e *ServerError) Error() string {
	return "refusing to send a secret in clear to " + e.reason
}

// addressesAge is how long Addresses caches its list, which may be long.
const addressesAge = time.Second

// Addresses are the addresses of this machine. The zero value is ready to use. Contains may
// be called concurrently.
type Addresses struct {
	mu    sync.Mutex
	read  time.Time
	known map[netip.Addr]bool
}

// Contains reports whether a is, or may be, an address of this machine. own is one of them.
func (l *Addresses) Contains(a, own netip.Addr) bool {
	if a.IsLoopback() || a == own {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.read) > addressesAge {
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			return true
		}
		l.read, l.known = time.Now(), make(map[netip.Addr]bool)
		for _, address := range addresses {
			if n, ok := address.(*net.IPNet); ok {
				known, _ := netip.AddrFromSlice(n.IP)
				l.known[known.Unmap()] = true
			}
		}
	}
	return l.known[a.WithZone("")]
}

// FindPeer finds the peer's socket of a connection whose own end is local. here reports
// that the peer is on this machine; then an error means that it must not be served.
// ErrUnsupported and the error of CanFindTCP do not mean that.
func (c *Checker) FindPeer(local, remote netip.AddrPort) (s Socket, here bool, err error) {
	s, err = FindTCP(local, remote)
	switch {
	case err == nil && s.Orphaned():
		return s, true, errPeerGone
	case err == nil:
		return s, true, nil
	case CanFindTCP() != nil:
		return s, false, err
	case remote.IsValid() && c.Addresses.Contains(unmap(remote).Addr(), unmap(local).Addr()):
		// The peer may have sent everything and reset the connection.
		return s, true, fmt.Errorf("the process on this machine that made this connection cannot be identified: %w", err)
	}
	return s, false, nil
}

var errPeerGone = errors.New("the peer has closed this connection")

// unmap converts an IPv4-mapped IPv6 address to IPv4.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// DialServer connects to a server in order to send secrets in clear, and checks the process
// that accepts the connection with [CheckServer]. ctx bounds both.
func DialServer(ctx context.Context, dialer *net.Dialer, network, address, named string) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := CheckServer(ctx, conn, named); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
