//go:build unix

package process

import (
	"errors"
	"fmt"
	"syscall"

	"execserver/internal/sys"
)

// signalGroup sends a signal to the program's process group, which may be gone.
// Behind a launcher SIGKILL is the launcher's, with which everything ends.
// The group's number belongs to it as long as it has a member; when the leader
// has been reaped and a process has its number, the number has been given to
// another, and the group is gone.
func (p *Process) signalGroup(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	group := p.group
	if sig == syscall.SIGKILL {
		group = p.pid
	}
	if p.reaped && (p.group != p.pid || !groupAlive(group)) {
		return nil
	}
	if err := signalGroup(group, sig); err != nil {
		return fmt.Errorf("signal process group %d: %w", group, err)
	}
	return nil
}

// signalGroup sends a signal to a group that is known to be the one meant.
func signalGroup(leader int, sig syscall.Signal) error {
	if err := sys.Kill(-leader, sig); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// groupAlive reports whether the group of a leader that has been reaped has
// members.
func groupAlive(leader int) bool {
	return errors.Is(sys.Kill(leader, 0), syscall.ESRCH) && sys.Kill(-leader, 0) == nil
}
