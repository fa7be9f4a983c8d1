//go:build unix

package process

import (
	"fmt"
	"syscall"

	"execserver/internal/ownership"
)

// signalGroup sends a signal to the program's process group, which may be gone. In a
// sandbox SIGKILL goes to the group of the launcher, and everything ends with that. The
// kernel does not give the number of a group to another process while the group has a
// member. So if the leader has been reaped and a process has its number, the group is
// gone.
func (p *Process) signalGroup(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	group := p.group
	if sig == syscall.SIGKILL {
		group = p.pid
	}
	if p.reaped && (p.group != p.pid || !ownership.GroupAlive(group)) {
		return nil
	}
	if err := ownership.SignalGroup(group, sig); err != nil {
		return fmt.Errorf("signal process group %d: %w", group, err)
	}
	return nil
}
