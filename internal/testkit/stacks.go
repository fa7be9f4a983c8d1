package testkit

import "runtime"

// Stacks returns the stacks of all goroutines, with an empty line between them.
func Stacks() string {
	for size := 1 << 20; ; size *= 2 {
		stacks := make([]byte, size)
		if n := runtime.Stack(stacks, true); n < size {
			return string(stacks[:n])
		}
	}
}
