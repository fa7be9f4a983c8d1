//go:build unix && !linux

package filesystem

import "syscall"

// nonblock keeps open from waiting for the other end of a FIFO.
const nonblock = syscall.O_NONBLOCK
