//go:build !linux

package process

import "syscall"

// confined is what a child in a sandbox has besides; there are none here.
type confined struct{}

// ended makes the program's status of its leader's, which it is.
func (*confined) ended(status syscall.WaitStatus) syscall.WaitStatus { return status }
