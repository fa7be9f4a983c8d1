package testkit

import (
	"math"

	"golang.org/x/sys/unix"
)

// InheritNothing keeps the children of the test from inheriting the descriptors that the
// test itself inherited. The program does the same when it starts.
func InheritNothing() {
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
