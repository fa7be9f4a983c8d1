//go:build unix

package ownership

import (
	"errors"
	"syscall"

	"execserver/internal/sys"
)

// SignalGroup sends a signal to the process group of a leader. The caller must know that
// its number has not been reused. A missing group is not an error.
func SignalGroup(leader int, sig syscall.Signal) error {
	if err := sys.Kill(-leader, sig); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// GroupAlive reports whether the group of a reaped leader has members.
func GroupAlive(leader int) bool {
	return errors.Is(sys.Kill(leader, 0), syscall.ESRCH) && sys.Kill(-leader, 0) == nil
}
