package serve

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// startedAs returns the id of the process that was started as the server: that of the
// keeper, if there is one.
func startedAs() int {
	if isKept {
		return keptBy.Keeper
	}
	return os.Getpid()
}

// isListening reports whether a descriptor is that of a socket that listens.
func isListening(fd int) bool {
	value, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && value != 0
}

// reloading tells systemd that the program reads its files again. READY=1 follows.
func (s supervisor) reloading() {
	var now unix.Timespec
	if s == "" || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	s.Say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}
