//go:build unix

package process

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals says whether processes here can be sent every signal.
const Signals = true

// SignalNumber returns the signal of a name such as "SIGTERM", 0 when there is
// none here.
func SignalNumber(name string) syscall.Signal { return unix.SignalNum(name) }

// signalForeign signals a process group whose number somebody else has told: 0
// means none, and 1 would be everybody.
func signalForeign(group int, sig syscall.Signal) error {
	if group <= 1 || group == syscall.Getpgrp() {
		return nil
	}
	return signalGroup(group, sig)
}

const sigCont = syscall.SIGCONT
