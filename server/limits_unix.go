//go:build unix

package server

import (
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
