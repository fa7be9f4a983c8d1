//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package term

import "golang.org/x/sys/unix"

// flushInput discards the unread input of a terminal.
func flushInput(fd int) {
	const read = 1 // FREAD
	_ = unix.IoctlSetPointerInt(fd, unix.TIOCFLUSH, read)
}
