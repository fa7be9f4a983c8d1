//go:build !unix

package client

import (
	"fmt"
	"os"
	"syscall"
)

// signalName returns the POSIX name of a signal.
func signalName(sig os.Signal) (string, error) {
	switch sig {
	case os.Interrupt:
		return "SIGINT", nil
	case os.Kill:
		return "SIGKILL", nil
	case syscall.SIGTERM:
		return "SIGTERM", nil
	case syscall.SIGHUP:
		return "SIGHUP", nil
	case syscall.SIGQUIT:
		return "SIGQUIT", nil
	}
	return "", fmt.Errorf("client: signal %v has no name that a server would know", sig)
}
