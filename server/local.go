package server

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// localAddressesAge is how long the server keeps the list of this machine's addresses, of
// which there may be thousands.
const localAddressesAge = time.Second

// localAddresses are the addresses of this machine.
type localAddresses struct {
	mu    sync.Mutex
	read  time.Time
	known map[netip.Addr]bool
}

// has reports whether a is or may be one of them. own is one of them.
func (l *localAddresses) has(a, own netip.Addr) bool {
	if a.IsLoopback() || a == own {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.read) > localAddressesAge {
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
