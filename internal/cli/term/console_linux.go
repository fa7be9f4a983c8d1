package term

import "golang.org/x/sys/unix"

// flushInput discards the unread input of a terminal.
func flushInput(fd int) { _ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }
