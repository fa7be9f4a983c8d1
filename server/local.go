package server

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// localAddressesAge is for how long the addresses of this machine are not looked up
// again: there may be thousands of them.
const localAddressesAge = time.Second

// localAddresses are the addresses of this machine.
type localAddresses struct {
	mu     sync.Mutex
	looked time.Time
	known  map[netip.Addr]bool
}

// has reports whether an address is or may be one of them; own is one.
func (l *localAddresses) has(a, own netip.Addr) bool {
	if a.IsLoopback() || a == own {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.looked) > localAddressesAge {
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			return true
		}
		l.looked, l.known = time.Now(), make(map[netip.Addr]bool)
		for _, address := range addresses {
			if n, ok := address.(*net.IPNet); ok {
				known, _ := netip.AddrFromSlice(n.IP)
				l.known[known.Unmap()] = true
			}
		}
	}
	return l.known[a.WithZone("")]
}
