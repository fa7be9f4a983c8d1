//go:build unix

package client

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalName returns the POSIX name of a signal.
func signalName(sig os.Signal) (string, error) {
	if s, ok := sig.(syscall.Signal); ok {
		if name := unix.SignalName(s); name != "" {
			return name, nil
		}
	}
	return "", fmt.Errorf("client: signal %v has no name that a server would know", sig)
}
