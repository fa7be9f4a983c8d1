package peer

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
)

// CanFindTCP returns nil if FindTCP works on this machine, and the reason if not. It
// tries FindTCP once, on a connection of its own.
func CanFindTCP() error {
	_, err := finder()
	return err
}

// finder finds a socket in the way that this kernel supports: with a request about one
// socket, or else by reading the whole table.
var finder = sync.OnceValues(func() (func(local, remote netip.AddrPort) (Socket, error), error) {
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

// FindTCP finds the peer's socket of a connection whose own end is local. It returns
// ErrNotFound if there is none in this network namespace.
func FindTCP(local, remote netip.AddrPort) (Socket, error) {
	find, err := finder()
	if err != nil {
		return Socket{}, err
	}
	return find(unmap(local), unmap(remote))
}

// try checks that find finds a socket of this program.
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
	// The remote end of near is the local end of its peer.
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

// errLimitedUsers says that one user id stands for many users.
var errLimitedUsers = errors.New("this program runs as the user that stands for all users unknown to its user namespace; run it as another one")

// limitedUsers reports whether the kernel would report this program's own user id for
// users that its user namespace does not know.
func limitedUsers() bool { return isUnknownUser(os.Geteuid()) }

// knowsAllUsers reports whether every user of the machine has a number in this program's user
// namespace.
func knowsAllUsers() bool {
	known, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(known)), " ") == "0 0 4294967295"
}
