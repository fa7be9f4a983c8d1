package main

import (
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/internal/descriptors"
)

// inheritNothing keeps descriptors that this program was started with from
// reaching the processes that it starts; Go protects only those it opened.
func inheritNothing() error { return descriptors.CloseOnExec(3) }

// ignoreBrokenPipes lets a write to a closed stdout or stderr fail instead of
// killing the program. To ignore the signal would be inherited by every child;
// to catch it is not.
func ignoreBrokenPipes() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
}

// interruptible returns stdin such that closing it ends a read that waits: with
// a pipe that takes another opening of it, which does not block and leaves the
// mode of the first one, which others may have, alone. Where that is impossible
// it returns what it was given.
func interruptible(stdin *os.File) *os.File {
	var st unix.Stat_t
	if unix.Fstat(int(stdin.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return stdin
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(stdin.Fd())), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return stdin
	}
	if null, err := os.Open(os.DevNull); err == nil {
		// The writer shall notice when the other one is closed.
		_ = unix.Dup3(int(null.Fd()), int(stdin.Fd()), 0)
		_ = null.Close()
	}
	return os.NewFile(uintptr(fd), stdin.Name())
}
