package client

import (
	"os"

	"golang.org/x/sys/unix"
)

// awaitEnd waits for a child to end, and does not reap it. It returns false where that is
// impossible.
func awaitEnd(p *os.Process) bool {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR { // ECHILD if this program ignores SIGCHLD
			return err == nil
		}
	}
}
