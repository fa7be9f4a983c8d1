//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// catchIgnored catches the signals that this program was started with ignored, as
// by nohup, and drops them. Its processes have default dispositions by that: to
// ignore a signal is inherited, to catch one is not.
func catchIgnored() {
	for number := syscall.Signal(1); number < 32; number++ {
		if signal.Ignored(number) {
			signal.Notify(make(chan os.Signal, 1), number)
		}
	}
}
