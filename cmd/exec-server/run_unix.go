//go:build unix

package main

import (
	"os"
	"syscall"
)

// passedSignals are passed on to the command, and resizeSignal to its terminal.
var passedSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, resizeSignal,
}

const resizeSignal = syscall.SIGWINCH
