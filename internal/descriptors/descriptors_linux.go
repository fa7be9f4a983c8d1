// Package descriptors keeps the children of a program from inheriting the descriptors
// that the program itself inherited. The sandbox's launcher uses it, so it imports
// little.
package descriptors

import (
	"errors"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec sets the close-on-exec flag on all descriptors from first on.
func CloseOnExec(first int) error {
	err := unix.CloseRange(uint(first), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	return each(first, err, func(fd int) { unix.CloseOnExec(fd) })
}

// maxDescriptors bounds the numbers that each tries if the kernel does not list the open
// descriptors.
const maxDescriptors = 1 << 20

// each calls f for the descriptors from first on. CloseOnExec uses it if close_range is
// missing (before Linux 5.9) or a container refuses it.
func each(first int, refused error, f func(fd int)) error {
	open, err := list()
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

// list lists the open descriptors.
func list() ([]int, error) {
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
