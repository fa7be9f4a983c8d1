//go:build unix

package term

import "golang.org/x/sys/unix"

// foreground reports whether the job of this program owns the terminal.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}
