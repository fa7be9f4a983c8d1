package launcher

import "execserver/internal/seccomp"

// LandlockAs confines the calling thread as the command of a policy that restricts the
// network alone, on a kernel with a version of Landlock.
func LandlockAs(abi int) error {
	s := &Spec{KeepRights: true, Become: true, Network: seccomp.NetworkNone}
	if failed := s.landlock(abi); failed != nil {
		return failed.err
	}
	return nil
}

// LandlockABI is the kernel's version of Landlock.
var LandlockABI = landlockABI
