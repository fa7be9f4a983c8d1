//go:build unix

package filesystem

import "syscall"

func isInvalid(errno syscall.Errno) bool { return errno == syscall.EINVAL }
