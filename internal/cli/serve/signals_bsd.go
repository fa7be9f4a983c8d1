//go:build unix && !linux

package serve

import (
	"os"
	"os/signal"
	"syscall"
)

// catchIgnored catches and drops the signals that this program was started with ignored,
// as by nohup. So its processes have default dispositions: children inherit an ignored
// signal, but not a caught one.
func catchIgnored() {
	for number := syscall.Signal(1); number < 32; number++ {
		if signal.Ignored(number) {
			signal.Notify(make(chan os.Signal, 1), number)
		}
	}
}
