package peer

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// IsLocal reports whether a connection to an address would end on this machine according to
// the kernel's routes, which include addresses that no interface has.
func IsLocal(a netip.Addr) (bool, error) {
	kind, err := routeKind(a)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return false, nil // the connection fails for the same reason
	case err != nil:
		return false, os.NewSyscallError("ask the kernel for a route", err)
	}
	return kind != unix.RTN_UNICAST, nil
}

// routeKind returns the kind of the route to an address, such as RTN_LOCAL.
func routeKind(a netip.Addr) (byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, routeRequest(a), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	var b [8 << 10]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], 0)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n >= headerBytes+unix.SizeofRtMsg && binary.NativeEndian.Uint16(b[4:]) == unix.RTM_NEWROUTE:
			return b[headerBytes+7], nil // rtm_type
		case n >= headerBytes+4 && binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR:
			return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(b[headerBytes:])))
		default:
			return 0, unix.EBADMSG
		}
	}
}

// routeRequest builds a request for the route to an address.
func routeRequest(a netip.Addr) []byte {
	a = a.Unmap()
	b := make([]byte, headerBytes+unix.SizeofRtMsg)
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b[headerBytes] = unix.AF_INET
	if a.Is6() {
		b[headerBytes] = unix.AF_INET6
	}
	b[headerBytes+1] = byte(a.BitLen()) // rtm_dst_len
	b = appendAttribute(b, unix.RTA_DST, a.AsSlice())
	if zone := a.Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			b = appendAttribute(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(i.Index)))
		}
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

// appendAttribute appends an attribute, whose length is a multiple of four.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}
