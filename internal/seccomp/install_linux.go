package seccomp

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install installs a filter for all threads of this program, and for everything that it
// executes and starts. It needs no_new_privs or a capability.
func Install(filter []Instruction) error {
	if !Supported {
		return errors.New("there is no filter of system calls for " + runtime.GOARCH)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	switch {
	case errno != 0:
		return errno
	case thread != 0:
		return errors.New("a thread of this program has another filter")
	}
	return nil
}
