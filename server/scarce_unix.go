//go:build unix

package server

import (
	"crypto/tls"
	"net"
	"sync"
	"syscall"
)

// descriptorLimit returns how many descriptors this program may have.
var descriptorLimit = sync.OnceValue(func() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || uint64(limit.Cur) > 1<<20 {
		return 1 << 20
	}
	return int(limit.Cur)
})

// quarterOfDescriptors returns how many descriptors connections may use before their
// upgrade, and how many connections the server may make for clients.
func quarterOfDescriptors() int { return max(4, descriptorLimit()/4) }

// scarce reports whether a new connection got one of the last descriptors, which are for
// admitted work. The kernel always assigns the lowest free one.
func scarce(conn net.Conn) (yes bool) {
	limit := descriptorLimit()
	withDescriptor(conn, func(fd int) { yes = fd >= limit-min(64, limit/8) })
	return yes
}

// unread reports whether the kernel holds bytes from the peer that the server has not
// read.
func unread(conn net.Conn) (yes bool) {
	withDescriptor(conn, func(fd int) {
		n, _, err := syscall.Recvfrom(fd, make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = err == nil && n > 0
	})
	return yes
}

// withDescriptor calls do with the descriptor of a connection, if it has one.
func withDescriptor(conn net.Conn, do func(fd int)) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}
