//go:build !linux

package client

import "os"

// awaitEnd returns false: this system cannot wait for a child without reaping it.
func awaitEnd(*os.Process) bool { return false }
