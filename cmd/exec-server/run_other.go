//go:build !unix

package main

import (
	"os"
	"syscall"
)

// passedSignals are passed on to the command. There is none for a terminal's
// size.
var passedSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

const resizeSignal = syscall.Signal(-1)
