package process

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// inputPipe makes a pipe to a child: it reads from r, and we write to w.
func inputPipe() (r, w *os.File, err error) { return makePipe(1) }

// outputPipe makes a pipe from a child: we read from r, and it writes to w.
func outputPipe() (r, w *os.File, err error) { return makePipe(0) }

// makePipe makes a pipe of which only our end is in the poller. The child's end blocks, as
// programs expect. os.Pipe would put that into the poller as well, and passing it to the
// child would set it back to blocking.
func makePipe(our int) (r, w *os.File, err error) {
	var ends [2]int
	if err := sys.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := sys.SetNonblock(ends[our], true); err != nil {
		_, _ = sys.Close(ends[0]), sys.Close(ends[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	r, w = sys.NewFile(uintptr(ends[0]), "|0"), sys.NewFile(uintptr(ends[1]), "|1")
	if err := watched([]*os.File{r, w}[our]); err != nil {
		_, _ = r.Close(), w.Close()
		return nil, nil, err
	}
	return r, w, nil
}

// errUnwatched says that the kernel lets this user watch no more files.
var errUnwatched = os.NewSyscallError("epoll_ctl", syscall.ENOSPC)

// watched returns an error if a file is not in the poller. Package os does not report that,
// and nothing could wait for output.
func watched(f *os.File) error {
	if f.SetDeadline(time.Time{}) != nil {
		return errUnwatched
	}
	return nil
}

// openNull opens the device that has no input, outside of the poller.
func openNull() (*os.File, error) {
	fd, err := sys.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	return sys.NewFile(uintptr(fd), os.DevNull), nil
}
