package peer

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
)

// CanFindTCP reports why FindTCP cannot work here; nil: it does. It tries once, on
// a connection of its own.
func CanFindTCP() error {
	_, err := finder()
	return err
}

// finder is how this kernel is asked: by a request about one socket, or where that
// is not possible by reading the whole table.
var finder = sync.OnceValues(func() (func(local, remote netip.AddrPort) (Socket, error), error) {
	firstGroup()
	if limitedUsers() {
		return nil, errLimitedUsers
	}
	var err error
	for _, find := range []func(local, remote netip.AddrPort) (Socket, error){askKernel, readTable} {
		if err = try(find); err == nil {
			return find, nil
		}
	}
	return nil, err
})

// FindTCP finds the peer's socket of a connection whose own end is local. It
// returns ErrNotFound when there is none in this network namespace.
func FindTCP(local, remote netip.AddrPort) (Socket, error) {
	find, err := finder()
	if err != nil {
		return Socket{}, err
	}
	return find(unmap(local), unmap(remote))
}

// unmap makes an address of IPv4 of one that is mapped to IPv6.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// try looks whether a way to find sockets finds one of this program.
func try(find func(local, remote netip.AddrPort) (Socket, error)) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		listener, err = net.Listen("tcp", "[::1]:0")
	}
	if err != nil {
		return err
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer near.Close()
	// What near is connected to is its own peer's view of it.
	found, err := find(addrPort(near.RemoteAddr()), addrPort(near.LocalAddr()))
	if err != nil {
		return err
	}
	if found.UID != os.Geteuid() || found.Orphaned() {
		return ErrUnsupported
	}
	return nil
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return unmap(tcp.AddrPort())
}

// errLimitedUsers says that one number stands for many users.
var errLimitedUsers = errors.New("this program runs as the user that stands for all users unknown to its user namespace; run it as another one")

// limitedUsers reports whether the kernel would give this program's own number to
// users that its user namespace does not know.
func limitedUsers() bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil || strings.TrimSpace(string(overflow)) != strconv.Itoa(os.Geteuid()) {
		return false
	}
	known, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.Join(strings.Fields(string(known)), " ") != "0 0 4294967295"
}
