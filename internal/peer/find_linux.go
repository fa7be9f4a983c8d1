package peer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// CanFindTCP returns nil if FindTCP works on this machine, and otherwise the reason. It
// tries FindTCP once, on a connection of its own.
func CanFindTCP() error {
	_, err := finder()
	return err
}

// finder returns the method that this kernel supports: a request for one socket, or else
// reading the whole table.
var finder = sync.OnceValues(func() (func(local, remote netip.AddrPort) (Socket, error), error) {
	if limitedUsers() {
		return nil, errLimitedUsers
	}
	var err error
	for _, find := range []func(local, remote netip.AddrPort) (Socket, error){findByNetlink, findInTable} {
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
	local, remote = unmap(local), unmap(remote)
	s, err := find(local, remote)
	s.local, s.remote = local, remote
	return s, err
}

// try checks that find can find a socket of this program.
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

// errLimitedUsers reports that this program's uid is the overflow uid.
var errLimitedUsers = errors.New("this program runs as the user that stands for all users unknown to its user namespace; run it as another one")

// limitedUsers reports whether the kernel would report this program's own uid for users
// without an id in its user namespace.
func limitedUsers() bool { return isUnknownUser(os.Geteuid()) }

// knowsAllUsers reports whether every user of the machine has an id in this program's user
// namespace.
func knowsAllUsers() bool {
	known, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(known)), " ") == "0 0 4294967295"
}

// Sizes of the messages of linux/netlink.h and linux/inet_diag.h.
const (
	headerBytes  = 16
	idBytes      = 48
	requestBytes = 8 + idBytes
	answerBytes  = 4 + idBytes + 20
)

// Attributes of a response. Linux 5.9 and later always send INET_DIAG_CGROUP_ID. Linux 5.4 and
// later send INET_DIAG_ULP_INFO with INET_DIAG_INFO, which is requested, if there is a protocol
// above TCP. Multipath TCP is younger.
const (
	attributeInfo      = 2
	attributeAbove     = 19
	attributeAboveName = 1 // in attributeAbove
	attributeGroup     = 21
)

// sockDiagByFamily is the type of the request and of its response.
const sockDiagByFamily = 20

// findByNetlink finds a socket with a NETLINK_SOCK_DIAG request.
func findByNetlink(local, remote netip.AddrPort) (Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return Socket{}, os.NewSyscallError("open a netlink socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, buildRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return Socket{}, os.NewSyscallError("ask the kernel for a socket", err)
	}
	var b [8 << 10]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Socket{}, os.NewSyscallError("ask the kernel for a socket", err)
		}
		return parseResponse(b[:n], local, remote)
	}
}

// buildRequest builds a request for the socket of the peer, whose own end is remote.
func buildRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, headerBytes+requestBytes)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[headerBytes:]
	r[0] = unix.AF_INET
	if remote.Addr().Is6() {
		r[0] = unix.AF_INET6
	}
	r[1] = unix.IPPROTO_TCP
	r[2] = 1 << (attributeInfo - 1)
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0)) // any state
	id := r[8:]
	binary.BigEndian.PutUint16(id, remote.Port())
	binary.BigEndian.PutUint16(id[2:], local.Port())
	copy(id[4:20], remote.Addr().AsSlice())
	copy(id[20:36], local.Addr().AsSlice())
	if zone := remote.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			binary.NativeEndian.PutUint32(id[36:], uint32(i.Index))
		}
	}
	for i := range id[40:48] {
		id[40+i] = 0xff // no cookie
	}
	return b
}

// parseResponse parses the response to a request.
func parseResponse(b []byte, local, remote netip.AddrPort) (Socket, error) {
	if len(b) < headerBytes {
		return Socket{}, fmt.Errorf("the kernel's answer about a socket has %d bytes", len(b))
	}
	switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
	case unix.NLMSG_ERROR:
		if len(b) < headerBytes+4 {
			return Socket{}, fmt.Errorf("the kernel's answer about a socket has %d bytes", len(b))
		}
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(b[headerBytes:])))
		if errno == unix.ENOENT {
			return Socket{}, ErrNotFound
		}
		return Socket{}, os.NewSyscallError("ask the kernel for a socket", errno)
	case sockDiagByFamily:
		if len(b) < headerBytes+answerBytes {
			return Socket{}, fmt.Errorf("the kernel's answer about a socket has %d bytes", len(b))
		}
	default:
		return Socket{}, fmt.Errorf("the kernel's answer about a socket is of type %d", kind)
	}
	a := b[headerBytes:]
	id := a[4:]
	// If there is no such connection, the kernel reports the socket that listens on the
	// peer's port.
	if binary.BigEndian.Uint16(id) != remote.Port() || binary.BigEndian.Uint16(id[2:]) != local.Port() {
		return Socket{}, ErrNotFound
	}
	s := Socket{
		UID:    int(binary.NativeEndian.Uint32(a[4+idBytes+12:])),
		Inode:  uint64(binary.NativeEndian.Uint32(a[4+idBytes+16:])),
		unread: int(binary.NativeEndian.Uint32(a[4+idBytes+4:])),
		unsent: int(binary.NativeEndian.Uint32(a[4+idBytes+8:])),
	}
	if of := attribute(a[answerBytes:], attributeGroup); len(of) == 8 {
		s.Group = binary.NativeEndian.Uint64(of)
	}
	if of := attribute(a[answerBytes:], attributeAbove); of != nil {
		name, _, _ := bytes.Cut(attribute(of, attributeAboveName), []byte{0})
		s.above = cmp.Or(string(name), "unknown")
	}
	return s, nil
}

// attribute returns the value of an attribute of a response, or nil.
func attribute(attributes []byte, wanted uint16) []byte {
	for len(attributes) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attributes))
		kind := binary.NativeEndian.Uint16(attributes[2:]) &^ unix.NLA_F_NESTED
		if size < unix.SizeofNlAttr || size > len(attributes) {
			return nil
		}
		if kind == wanted {
			return attributes[unix.SizeofNlAttr:size]
		}
		attributes = attributes[min((size+3)&^3, len(attributes)):]
	}
	return nil
}

// findInTable finds a socket in the tables of all sockets, in time linear in their number. They do
// not show what is above TCP, so it reports a protocol that may be there.
func findInTable(local, remote netip.AddrPort) (Socket, error) {
	tables := []string{"/proc/net/tcp6"}
	if remote.Addr().Is4() { // an IPv6 socket may have an IPv4 address as well
		tables = []string{"/proc/net/tcp", "/proc/net/tcp6"}
	}
	for i, table := range tables {
		found, err := searchTable(table, local, remote)
		if err == nil || err != ErrNotFound && i == 0 {
			return found, err
		}
	}
	return Socket{}, ErrNotFound
}

func searchTable(path string, local, remote netip.AddrPort) (Socket, error) {
	table, err := os.Open(path)
	if err != nil {
		return Socket{}, err
	}
	defer table.Close()
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !matchesAddress(fields[1], remote) || !matchesAddress(fields[2], local) {
			continue
		}
		uid, err := strconv.Atoi(fields[7])
		if err != nil {
			return Socket{}, fmt.Errorf("%s has a line that cannot be understood: %q", path, lines.Text())
		}
		inode, err := strconv.ParseUint(fields[9], 10, 64)
		if err != nil {
			return Socket{}, fmt.Errorf("%s has a line that cannot be understood: %q", path, lines.Text())
		}
		s := Socket{UID: uid, Inode: inode, above: availableAbove()}
		if _, err := fmt.Sscanf(fields[4], "%x:%x", &s.unsent, &s.unread); err != nil {
			return Socket{}, fmt.Errorf("%s has a line that cannot be understood: %q", path, lines.Text())
		}
		return s, nil
	}
	if err := lines.Err(); err != nil {
		return Socket{}, err
	}
	return Socket{}, ErrNotFound
}

// availableAbove returns a protocol that a program may put above TCP on this machine without a
// privilege, or "". The kernel lists multipath TCP among them even if it is turned off.
func availableAbove() string {
	if on, err := os.ReadFile("/proc/sys/net/mptcp/enabled"); err == nil && strings.TrimSpace(string(on)) != "0" {
		return "mptcp"
	}
	names, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_ulp") // there is none in a network namespace
	for name := range strings.FieldsSeq(string(names)) {
		if name != "mptcp" {
			return name
		}
	}
	return ""
}

// matchesAddress reports whether text, an address in the format of the tables, is a. The
// format is 32-bit words in the machine's byte order, and a port.
func matchesAddress(text string, a netip.AddrPort) bool {
	host, port, _ := strings.Cut(text, ":")
	if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != a.Port() {
		return false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	address, ok := netip.AddrFromSlice(b)
	return ok && address.Unmap() == a.Addr().WithZone("")
}
