//go:build unix

package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals lets signals act on children although this program was started
// with some of them ignored, as nohup does, and a shell for what it starts in the
// background.
func DefaultSignals() {
	for number := syscall.Signal(1); number <= 64; number++ {
		if signal.Ignored(number) {
			// To catch a signal is not inherited, to ignore it is.
			signal.Notify(make(chan os.Signal, 1), number)
		}
	}
}
