package launcher

import (
	"syscall"

	"execserver/internal/seccomp"
)

// LandlockAs confines the calling thread as the command of a policy that restricts the
// network alone, on a kernel with a version of Landlock.
func LandlockAs(abi int) error {
	s := &Spec{KeepRights: true, Exec: true, Network: seccomp.NetworkNone}
	if failed := s.landlock(abi); failed != nil {
		return failed.err
	}
	return nil
}

// LandlockABI is the kernel's version of Landlock.
var LandlockABI = landlockABI

// Command returns functions of a launcher whose command leads a group: one reaps children
// until the command has ended, the other signals the command.
func Command(pid int) (wait func() syscall.WaitStatus, signal func(syscall.Signal)) {
	c := &command{pid: pid, group: true}
	return c.wait, c.signal
}
