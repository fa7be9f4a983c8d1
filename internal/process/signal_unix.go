//go:build unix

package process

import (
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/ownership"
)

// Signals says whether every signal can be sent to processes here.
const Signals = true

// SignalNumber returns the signal with a name such as "SIGTERM", or 0 if this system has
// none.
func SignalNumber(name string) syscall.Signal { return unix.SignalNum(name) }

// signalForeign signals a process group whose number another program has chosen. 0 means
// no group, and with 1 the signal would go to every process.
func signalForeign(group int, sig syscall.Signal) error {
	if group <= 1 || group == syscall.Getpgrp() {
		return nil
	}
	return ownership.SignalGroup(group, sig)
}

const sigCont = syscall.SIGCONT
