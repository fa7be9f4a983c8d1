//go:build unix

package transport

import "syscall"

// restrictSocket gives an unbound socket mode 0600. Systems that refuse this
// get the mode by path.
func restrictSocket(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) }
