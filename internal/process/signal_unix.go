//go:build unix

package process

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals says whether every signal can be sent to processes here.
const Signals = true

// SignalNumber returns the signal with a name such as "SIGTERM", or 0 if this system has
// none.
func SignalNumber(name string) syscall.Signal { return unix.SignalNum(name) }

const sigCont = syscall.SIGCONT
