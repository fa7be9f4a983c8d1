package process

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
	"execserver/protocol"
)

// Terminals reports whether processes can have a terminal on this system.
const Terminals = true

// openTerminal opens a new terminal. The runtime's poller watches the master, so
// deadlines work, and closing the master wakes its reader.
func openTerminal(s protocol.TerminalSize) (master, slave *os.File, err error) {
	fd, err := sys.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master = sys.NewFile(uintptr(fd), "/dev/ptmx")
	if err = checkPollable(master); err == nil {
		slave, err = openSlave(fd)
	}
	if err == nil {
		err = setSize(fd, s)
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

// openSlave opens the slave through the master, which works whatever is mounted at
// /dev/pts. Old kernels need the path.
func openSlave(master int) (*os.File, error) {
	if err := sys.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, os.NewSyscallError("unlock terminal", err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		return sys.NewFile(fd, "terminal"), nil
	}
	n, err := sys.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, os.NewSyscallError("number of terminal", err)
	}
	return sys.OpenFile("/dev/pts/"+strconv.Itoa(n), flags, 0)
}

func setSize(fd int, s protocol.TerminalSize) error {
	err := sys.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	return os.NewSyscallError("set terminal size", err)
}

// sizeOf returns the size of a terminal.
func sizeOf(master *os.File) (size protocol.TerminalSize, err error) {
	err = control(master, func(fd int) error {
		got, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			size = protocol.TerminalSize{Rows: got.Row, Cols: got.Col}
		}
		return os.NewSyscallError("read terminal size", err)
	})
	return size, err
}

// resize sets the size of a terminal. The kernel sends SIGWINCH to its foreground process
// group.
func resize(master *os.File, s protocol.TerminalSize) error {
	return control(master, func(fd int) error { return setSize(fd, s) })
}

// foreground returns the foreground process group of a terminal, or 0 if there is none.
func foreground(master *os.File) (group int, err error) {
	err = control(master, func(fd int) error {
		n, err := sys.IoctlGetUint32(fd, unix.TIOCGPGRP)
		group = int(n)
		return os.NewSyscallError("find the foreground group", err)
	})
	return group, err
}

// control calls f with the descriptor of a file. The error is os.ErrClosed if the file has
// been closed.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if raw.Control(func(fd uintptr) { result = f(int(fd)) }) != nil {
		return os.ErrClosed
	}
	return result
}
