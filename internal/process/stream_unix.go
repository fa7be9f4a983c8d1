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

// interrupt gives the reader an order, and makes a blocked read return.
func (s *stream) interrupt(order int32) {
	for {
		old := s.order.Load()
		if old >= order {
			return
		}
		if s.order.CompareAndSwap(old, order) {
			break
		}
	}
	// An error means that the file is closed, and its reader gone.
	_ = s.file.SetReadDeadline(time.Unix(1, 0))
}

// read waits for output and reads at most room bytes. It asks for memory only when there is
// something to read.
func (s *stream) read(room int) (n int, interrupted bool, err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		if !s.to.HasBuffer() && !readable(int(fd)) {
			return false
		}
		n, err = readFd(int(fd), s.to.Buffer(room))
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
func (s *stream) readNow(room int) (n int, err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	// Not raw.Read, which fails when the next interruption is there already.
	waitErr := raw.Control(func(fd uintptr) {
		n, err = readFd(int(fd), s.to.Buffer(room))
	})
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return n, errors.Join(waitErr, err)
}

// terminalHolds is more than the kernel buffers for a terminal, which does not report the
// size of its buffer.
const terminalHolds = 256 << 10

// held returns how many bytes the stream holds at most.
func (s *stream) held() int {
	held := terminalHolds
	raw, err := s.file.SyscallConn()
	if err != nil {
		return held
	}
	_ = raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		if sys.Fstat(int(fd), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			return
		}
		if n, err := sys.IoctlGetInt(int(fd), ioctlReadable); err == nil {
			held = n
		}
	})
	return held
}

// pending reports whether the stream holds output, or its end, that the reader has not
// read.
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
// A terminal whose last holder is gone fails with EIO, but not before the second EIO is
// everything read: the kernel moves what is written to the terminal's reader in the
// background. A read waits for that, sees nothing, and only then looks whether a holder is
// left, so that the last holder may have written, and ended, in between.
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
