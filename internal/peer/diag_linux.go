package peer

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Sizes of the messages of linux/netlink.h and linux/inet_diag.h.
const (
	headerBytes  = 16
	idBytes      = 48
	requestBytes = 8 + idBytes
	answerBytes  = 4 + idBytes + 20
)

// attributeGroup is INET_DIAG_CGROUP_ID, which Linux sends unasked from 5.9 on.
const attributeGroup = 21

// sockDiagByFamily is the type of the request and of its answer.
const sockDiagByFamily = 20

// askKernel finds a socket with a NETLINK_SOCK_DIAG request.
func askKernel(local, remote netip.AddrPort) (Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return Socket{}, os.NewSyscallError("open a netlink socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, request(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
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
		return answer(b[:n], local, remote)
	}
}

// request builds a request for the socket of the peer, whose own end is remote.
func request(local, remote netip.AddrPort) []byte {
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

// answer parses the answer to a request.
func answer(b []byte, local, remote netip.AddrPort) (Socket, error) {
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
	// If there is no such connection, the kernel answers with the socket that listens on
	// the peer's port.
	if binary.BigEndian.Uint16(id) != remote.Port() || binary.BigEndian.Uint16(id[2:]) != local.Port() {
		return Socket{}, ErrNotFound
	}
	return Socket{
		UID:   int(binary.NativeEndian.Uint32(a[4+idBytes+12:])),
		Inode: uint64(binary.NativeEndian.Uint32(a[4+idBytes+16:])),
		Group: group(a[answerBytes:]),
	}, nil
}

// group returns the control group among the attributes of an answer, or 0.
func group(attributes []byte) uint64 {
	for len(attributes) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attributes))
		kind := binary.NativeEndian.Uint16(attributes[2:])
		if size < unix.SizeofNlAttr || size > len(attributes) {
			return 0
		}
		if kind == attributeGroup && size == unix.SizeofNlAttr+8 {
			return binary.NativeEndian.Uint64(attributes[unix.SizeofNlAttr:])
		}
		attributes = attributes[min((size+3)&^3, len(attributes)):]
	}
	return 0
}
