//go:build unix

package terminal

import "golang.org/x/sys/unix"

// foreground reports whether no other job has the terminal.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}
