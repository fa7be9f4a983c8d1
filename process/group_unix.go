//go:build unix

package process

import (
	"errors"
	"syscall"
)

// killGroupLocked signals the leader's process group; signal 0 only looks. The
// group's number belongs to it as long as it has a member; when the leader has
// been reaped and a process has its number, the number has been given to
// another, and the group is gone.
func (p *Process) killGroupLocked(sig syscall.Signal) error {
	if !p.groupKnownLocked() {
		return nil
	}
	err := syscall.Kill(-p.pid, sig)
	if errors.Is(err, syscall.ESRCH) && sig != 0 {
		return nil
	}
	return err
}

// groupKnownLocked reports whether the group's number still means our group.
func (p *Process) groupKnownLocked() bool {
	if !p.reaped {
		return true
	}
	err := syscall.Kill(p.pid, 0)
	return errors.Is(err, syscall.ESRCH)
}

// Group is what may be left of a closed process: the number of its group.
type Group int

// Leftover returns the group if it still has members, else 0.
func (p *Process) Leftover() Group {
	if !p.groupAlive() {
		return 0
	}
	return Group(p.pid)
}

// Alive reports whether the group has members.
func (g Group) Alive() bool {
	return errors.Is(syscall.Kill(int(g), 0), syscall.ESRCH) && syscall.Kill(-int(g), 0) == nil
}

// Kill sends SIGKILL to the group if it has members.
func (g Group) Kill() {
	if g.Alive() {
		_ = syscall.Kill(-int(g), syscall.SIGKILL)
	}
}

// Interrupt sends SIGINT to the leader's process group.
func (p *Process) Interrupt() error { return p.Signal(syscall.SIGINT) }
