package process

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// size of a terminal in characters.
type size struct{ rows, cols uint16 }

// defaultSize is what clients expect of a terminal whose size nobody gave.
var defaultSize = size{24, 80}

// openTerminal opens a new terminal. The master is in the poller, so that
// deadlines work and closing it wakes its reader.
func openTerminal(s size) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	slave, err = openSlave(fd)
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.rows, Col: s.cols})
	}
	if err != nil {
		_ = master.Close()
		if slave != nil {
			_ = slave.Close()
		}
		return nil, nil, err
	}
	return master, slave, nil
}

// openSlave opens the other end through the master, which works whatever is
// mounted at /dev/pts; old kernels need the path.
func openSlave(master int) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, os.NewSyscallError("unlock terminal", err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		return os.NewFile(fd, "terminal"), nil
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, os.NewSyscallError("number of terminal", err)
	}
	return os.OpenFile("/dev/pts/"+strconv.Itoa(n), flags, 0)
}
