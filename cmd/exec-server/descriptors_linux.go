package main

import (
	"math"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// inheritNothing keeps descriptors that this program was started with from
// reaching the processes that it starts; Go protects only those it opened.
func inheritNothing() {
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// ignoreBrokenPipes lets a write to a closed stdout or stderr fail instead of
// killing the program. To ignore the signal would be inherited by every child;
// to catch it is not.
func ignoreBrokenPipes() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
}
