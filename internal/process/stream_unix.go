//go:build unix

package process

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// interrupt sets the mode and interrupts a blocked read.
func (s *stream) interrupt(mode int32) {
	for {
		old := s.mode.Load()
		if old >= mode {
			return
		}
		if s.mode.CompareAndSwap(old, mode) {
			break
		}
	}
	// An error means that the file is closed and its reader gone.
	_ = s.file.SetReadDeadline(time.Unix(1, 0))
}

// read waits for output and reads at most max bytes. It allocates a buffer only when there
// is something to read.
func (s *stream) read(max int) (n int, interrupted bool, err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		if !s.writer.HasBuffer() && !readable(int(fd)) {
			return false
		}
		n, err = readFd(int(fd), s.writer.Buffer(max))
		return !errors.Is(err, unix.EAGAIN)
	})
	if errors.Is(waitErr, os.ErrDeadlineExceeded) {
		_ = s.file.SetReadDeadline(time.Time{})
		return 0, true, nil
	}
	if waitErr != nil {
		return 0, false, waitErr
	}
	return n, false, err
}

// readNow reads without waiting. It returns 0 and no error if there is nothing to read.
func (s *stream) readNow(max int) (n int, err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	// Not raw.Read, which fails if another interruption is pending.
	waitErr := raw.Control(func(fd uintptr) {
		n, err = readFd(int(fd), s.writer.Buffer(max))
	})
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return n, errors.Join(waitErr, err)
}

// terminalBuffer exceeds the kernel's buffer for a terminal, whose fill level cannot be
// queried.
const terminalBuffer = 256 << 10

// buffered returns an upper bound of the bytes that the stream holds.
func (s *stream) buffered() int {
	size := terminalBuffer
	raw, err := s.file.SyscallConn()
	if err != nil {
		return size
	}
	_ = raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		if sys.Fstat(int(fd), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			return
		}
		if n, err := sys.IoctlGetInt(int(fd), ioctlReadable); err == nil {
			size = n
		}
	})
	return size
}

// pending reports whether the stream holds unread output or its end.
func (s *stream) pending() (pending bool) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { pending = readable(int(fd)) })
	return pending
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := sys.Poll(fds, 0)
	return err != nil || n > 0
}

// readFd reads once; the end of the stream is io.EOF.
//
// A terminal without holders fails with EIO, but only the second EIO means that everything
// has been read: the kernel passes written data to the reading side in the background. A
// read waits for that, finds no data, and only then checks for holders; the last one may
// have written and exited in between.
func readFd(fd int, b []byte) (int, error) {
	for ended := false; ; {
		n, err := sys.ReadOutput(fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EIO && !ended:
			ended = true
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// writeAvailable writes what can be written without blocking.
func writeAvailable(f *os.File, b []byte) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	waitErr := raw.Write(func(fd uintptr) bool {
		for n < len(b) && err == nil {
			var m int
			m, err = sys.Write(int(fd), b[n:])
			if err == syscall.EINTR {
				err = nil
			}
			n += max(m, 0)
		}
		return true
	})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) { // the rest is queued
		err = nil
	}
	return n, errors.Join(waitErr, err)
}
