package terminal

import "golang.org/x/sys/unix"

// flushInput discards the input of a terminal that nobody has read.
func flushInput(fd int) { _ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) }
