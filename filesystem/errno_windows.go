package filesystem

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// errnoTexts is empty: Windows has texts of its own.
var errnoTexts map[syscall.Errno]string

func isInvalid(errno syscall.Errno) bool {
	switch errno {
	case syscall.EINVAL, windows.ERROR_INVALID_PARAMETER, windows.ERROR_INVALID_NAME, windows.ERROR_NEGATIVE_SEEK:
		return true
	}
	return false
}
