package sys

import (
	"golang.org/x/sys/unix"
)

// pipeBytes is how much a pipe to or from a server holds, if the system allows it: the most
// that an ordinary user may ask for.
const pipeBytes = 1 << 20

// EnlargePipe lets a pipe hold more, so that a program that passes bulk data on neither waits
// nor wakes the reader for every piece. Where that fails, or if file is no pipe, everything
// stays as it is.
func EnlargePipe(file any) {
	_ = OnDescriptor(file, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes)
		return err
	})
}
