package sys

import (
	"errors"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExecFrom sets the close-on-exec flag on all descriptors from first on, so that
// children do not inherit what this program has inherited.
func CloseOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	return eachDescriptor(first, err, func(fd int) { unix.CloseOnExec(fd) })
}

// maxDescriptors bounds the numbers that eachDescriptor tries if the kernel does not list the open
// descriptors.
const maxDescriptors = 1 << 20

// eachDescriptor calls f for the descriptors from first on. CloseOnExecFrom uses it if close_range is
// missing (before Linux 5.9) or a container refuses it.
func eachDescriptor(first int, refused error, f func(fd int)) error {
	open, err := openDescriptors()
	if err == nil {
		for _, fd := range open {
			if fd >= first {
				f(fd)
			}
		}
		return nil
	}
	var limit unix.Rlimit
	if limitErr := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); limitErr != nil || limit.Max > maxDescriptors {
		return errors.Join(os.NewSyscallError("close_range", refused), err, limitErr)
	}
	for fd := first; fd < int(limit.Max); fd++ {
		f(fd) // it may not be open
	}
	return nil
}

// openDescriptors lists the open descriptors.
func openDescriptors() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var open []int
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return nil, err
		}
		open = append(open, fd) // that of the directory is closed by now
	}
	return open, nil
}
