//go:build unix

package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals makes children start with the default action for every signal. Without
// it they would inherit the signals that this program ignores because nohup, or a shell
// that runs it in the background, made it ignore them.
func DefaultSignals() {
	for number := syscall.Signal(1); number <= 64; number++ {
		if signal.Ignored(number) {
			// To catch a signal is not inherited, to ignore it is.
			signal.Notify(make(chan os.Signal, 1), number)
		}
	}
}
