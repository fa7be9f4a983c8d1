package ownership

import "syscall"

// SignalGroup does nothing: Windows has no process groups that can be signaled.
func SignalGroup(int, syscall.Signal) error { return nil }

// GroupAlive returns false: Windows has no process groups.
func GroupAlive(int) bool { return false }
