//go:build unix

package serve

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyDrain sends the signals that drain the server to a channel.
func notifyDrain(to chan<- os.Signal) { signal.Notify(to, syscall.SIGUSR2) }
