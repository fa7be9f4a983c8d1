package testkit

import (
	"math"

	"golang.org/x/sys/unix"
)

// InheritNothing keeps descriptors that the test was started with from its
// children, as the program does when it starts.
func InheritNothing() {
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
