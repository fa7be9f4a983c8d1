//go:build unix

package server

import (
	"crypto/tls"
	"net"
	"sync"
	"syscall"
)

// descriptorLimit is how many descriptors this program may have.
var descriptorLimit = sync.OnceValue(func() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || uint64(limit.Cur) > 1<<20 {
		return 1 << 20
	}
	return int(limit.Cur)
})

// maxPendingDescriptors is how many descriptors connections may take that are not
// upgraded yet.
func maxPendingDescriptors() int { return max(4, descriptorLimit()/4) }

// scarce reports whether a new connection has got one of the last descriptors,
// which are for work that is admitted already: the kernel gives the lowest.
func scarce(conn net.Conn) (yes bool) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	limit := descriptorLimit()
	_ = raw.Control(func(fd uintptr) { yes = int(fd) >= limit-min(64, limit/8) })
	return yes
}
