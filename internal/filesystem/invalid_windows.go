package filesystem

import (
	"syscall"

	"golang.org/x/sys/windows"
)

func isInvalid(errno syscall.Errno) bool {
	switch errno {
	case syscall.EINVAL, windows.ERROR_INVALID_PARAMETER, windows.ERROR_INVALID_NAME, windows.ERROR_NEGATIVE_SEEK:
		return true
	}
	return false
}
