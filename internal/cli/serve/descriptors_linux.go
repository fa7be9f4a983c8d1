package serve

import (
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// InheritNothing keeps the descriptors with which this program was started from its
// processes. Go protects only those that it opened.
func InheritNothing() error { return sys.CloseOnExecFrom(3) }

// IgnoreBrokenPipes makes a write to a closed stdout or stderr fail instead of killing
// the program. It catches the signal, because children would inherit an ignored one.
func IgnoreBrokenPipes() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
}

// interruptible returns a file for stdin whose Close ends a waiting read. It opens a pipe
// a second time, in non-blocking mode, and leaves the mode of the first descriptor alone,
// because other processes may share it. If it cannot, it returns stdin itself.
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
		// The writer should notice when the other descriptor is closed.
		_ = unix.Dup3(int(null.Fd()), int(stdin.Fd()), 0)
		_ = null.Close()
	}
	return os.NewFile(uintptr(fd), stdin.Name())
}
