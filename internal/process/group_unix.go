//go:build unix

package process

import (
	"fmt"
	"syscall"

	"execserver/internal/ownership"
)

// signalGroup sends a signal to the program's process group if its leader has not been
// reaped, and reports that. Until then nobody else has its number. In a sandbox SIGKILL goes
// to the group of the launcher, and everything ends with that; the launcher, which reaps the
// program, passes other signals on.
func (p *Process) signalGroup(sig syscall.Signal) (held bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return false, nil
	}
	if sig != syscall.SIGKILL && p.passSignal != nil {
		err = p.passSignal(sig)
	} else {
		err = ownership.SignalGroup(p.pid, sig)
	}
	if err != nil {
		return true, fmt.Errorf("signal process group %d: %w", p.group, err)
	}
	return true, nil
}
