//go:build !unix

package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
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

func ownGroup(*exec.Cmd) {}

// terminateGroup does nothing: the server ends when its input does.
func terminateGroup(*os.Process) {}

func killGroup(p *os.Process) { _ = p.Kill() }

// stoppable returns the file itself: on this system a Read cannot be interrupted.
func stoppable(_ context.Context, f *os.File) (r io.Reader, release func()) { return f, func() {} }
