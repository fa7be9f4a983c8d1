package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// addressesAge is how long Addresses keeps its list, which may have thousands.
const addressesAge = time.Second

// Addresses are the addresses of this machine. The zero value is ready to use. Has may be
// called concurrently.
type Addresses struct {
	mu    sync.Mutex
	read  time.Time
	known map[netip.Addr]bool
}

// Has reports whether a is or may be one of them. own is one of them.
func (l *Addresses) Has(a, own netip.Addr) bool {
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

// Find finds the peer's socket of a connection whose own end is local, in whatever way the
// peer reached this program. here says that the peer is on this machine; an error then says
// why it must not be served. ErrUnsupported, or what CanFindTCP returns, says nothing about it.
func (j *Judge) Find(local, remote netip.AddrPort) (s Socket, here bool, err error) {
	s, err = FindTCP(local, remote)
	switch {
	case err == nil && s.Orphaned():
		return s, true, errLeft
	case err == nil:
		return s, true, nil
	case CanFindTCP() != nil:
		return s, false, err
	case remote.IsValid() && j.Addresses.Has(unmap(remote).Addr(), unmap(local).Addr()):
		// The peer may have sent everything, and reset the connection.
		return s, true, fmt.Errorf("it cannot be found out who of this machine has made this connection: %w", err)
	}
	return s, false, nil
}

var errLeft = errors.New("nobody holds the other end of this connection any more")

// unmap converts an IPv4 address that is mapped to IPv6.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
