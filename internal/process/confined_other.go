//go:build !linux

package process

import "syscall"

// confined has no fields: there are no sandboxes here.
type confined struct{}

// passSignal returns nil: the leader is the program.
func (*confined) passSignal() func(syscall.Signal) error { return nil }

// ended returns the program's status, which is its leader's.
func (*confined) ended(status syscall.WaitStatus) syscall.WaitStatus { return status }
