//go:build unix

package process

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/ownership"
)

// Signals reports whether processes on this system can be sent any signal.
const Signals = true

// SignalNumber returns the signal with a name such as "SIGTERM", or 0 if this system has
// none.
func SignalNumber(name string) syscall.Signal { return unix.SignalNum(name) }

const sigCont = syscall.SIGCONT

// signalName returns the name of a signal, such as SIGKILL.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return unnamedSignal(sig)
}

// signalGroup sends a signal to the program's process group. It does so only while its
// leader has not been reaped and the group's number cannot be reused, and reports whether
// that is the case. In a sandbox SIGKILL goes to the group of the launcher, which takes the
// sandbox down. The launcher, which reaps the program, forwards other signals.
func (p *Process) signalGroup(sig syscall.Signal) (held bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return false, nil
	}
	if sig != syscall.SIGKILL && p.forwardSignal != nil {
		err = p.forwardSignal(sig)
	} else {
		err = ownership.SignalGroup(p.pid, sig)
	}
	if err != nil {
		return true, fmt.Errorf("signal process group %d: %w", p.group, err)
	}
	return true, nil
}
