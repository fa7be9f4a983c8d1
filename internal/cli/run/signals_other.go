//go:build !unix

package run

import (
	"os"
	"syscall"
)

// passedSignals are forwarded to the command. This system has no signal for the size of a
// terminal.
var passedSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

const (
	resizeSignal   = syscall.Signal(-1)
	continueSignal = syscall.Signal(-2)
)

// This system has no jobs that share a terminal.

func stayInBackground() {}

// suspend does nothing, because this system cannot stop a program.
func suspend() (continued bool) { return false }
