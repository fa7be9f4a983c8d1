//go:build unix

package sys

import (
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/fault"
)

// Kill is unix.Kill.
func Kill(pid int, sig syscall.Signal) error {
	if err := fault.At("kill"); err != nil {
		return err
	}
	return unix.Kill(pid, sig)
}

// Wait4 is syscall.Wait4.
func Wait4(pid int, status *syscall.WaitStatus, options int, usage *syscall.Rusage) (int, error) {
	if err := fault.At("wait"); err != nil {
		return -1, err
	}
	return syscall.Wait4(pid, status, options, usage)
}

// Faccessat is unix.Faccessat.
func Faccessat(dir int, path string, mode uint32, flags int) error {
	if err := fault.At("access"); err != nil {
		return err
	}
	return unix.Faccessat(dir, path, mode, flags)
}

// Fstat is unix.Fstat.
func Fstat(fd int, st *unix.Stat_t) error {
	if err := fault.At("fstat"); err != nil {
		return err
	}
	return unix.Fstat(fd, st)
}

// Poll is unix.Poll.
func Poll(fds []unix.PollFd, timeout int) (int, error) {
	if err := fault.At("poll"); err != nil {
		return -1, err
	}
	return unix.Poll(fds, timeout)
}

// Read is unix.Read.
func Read(fd int, b []byte) (int, error) {
	if err := fault.At("read"); err != nil {
		return -1, err
	}
	return unix.Read(fd, b)
}

// ReadOutput is unix.Read of a pipe or terminal that a child writes to.
func ReadOutput(fd int, b []byte) (int, error) {
	if err := fault.At("read output"); err != nil {
		return -1, err
	}
	return unix.Read(fd, b)
}

// Pread is unix.Pread.
func Pread(fd int, b []byte, offset int64) (int, error) {
	if err := fault.At("read"); err != nil {
		return -1, err
	}
	return unix.Pread(fd, b, offset)
}

// Write is unix.Write.
func Write(fd int, b []byte) (int, error) {
	if err := fault.At("write"); err != nil {
		return -1, err
	}
	return unix.Write(fd, b)
}

// IoctlGetInt is unix.IoctlGetInt.
func IoctlGetInt(fd int, request uint) (int, error) {
	if err := fault.At("ioctl"); err != nil {
		return 0, err
	}
	return unix.IoctlGetInt(fd, request)
}

// IoctlSetWinsize is unix.IoctlSetWinsize.
func IoctlSetWinsize(fd int, request uint, size *unix.Winsize) error {
	if err := fault.At("ioctl"); err != nil {
		return err
	}
	return unix.IoctlSetWinsize(fd, request, size)
}

// SetNonblock is unix.SetNonblock.
func SetNonblock(fd int, on bool) error {
	if err := fault.At("nonblock"); err != nil {
		return err
	}
	return unix.SetNonblock(fd, on)
}

// Open is unix.Open.
func Open(path string, flags int, perm uint32) (int, error) {
	if err := fault.At("open"); err != nil {
		return -1, err
	}
	return own(unix.Open(path, flags, perm))
}

// Close is unix.Close. The descriptor is closed whatever it returns.
func Close(fd int) error {
	fault.Close(fd)
	err := unix.Close(fd)
	if injected := fault.At("close"); injected != nil {
		return injected
	}
	return err
}

func own(fd int, err error) (int, error) {
	if err == nil {
		fault.Own(fd)
	}
	return fd, err
}
