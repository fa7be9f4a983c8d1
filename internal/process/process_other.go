//go:build !linux

package process

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"execserver/internal/sys"
	"execserver/protocol"
)

// Terminals reports whether processes can have a terminal on this system.
const Terminals = false

var errNoTerminals = errors.New("terminals are not supported on " + runtime.GOOS + " yet; start the process with tty false")

func openTerminal(protocol.TerminalSize) (master, slave *os.File, err error) {
	return nil, nil, errNoTerminals
}

func resize(*os.File, protocol.TerminalSize) error { return errNoTerminals }

func sizeOf(*os.File) (protocol.TerminalSize, error) { return protocol.TerminalSize{}, errNoTerminals }

func foreground(*os.File) (group int, err error) { return 0, errNoTerminals }

// inputPipe makes a pipe to a child, which reads from r.
func inputPipe() (r, w *os.File, err error) { return os.Pipe() }

// outputPipe makes a pipe from a child, which writes to w.
func outputPipe() (r, w *os.File, err error) { return os.Pipe() }

// openNull opens the null device for reading.
func openNull() (*os.File, error) { return sys.OpenFile(os.DevNull, os.O_RDONLY, 0) }

// confined has no fields: this system has no sandboxes.
type confined struct{}

// refuseSandbox refuses a start with a sandbox.
func refuseSandbox(spec Spec) error {
	if spec.Sandbox == nil {
		return nil
	}
	confinement, err := spec.Sandbox()
	if err == nil {
		confinement.Release()
		err = &Error{Program: spec.Argv[0], Reason: "there are no sandboxes on " + runtime.GOOS}
	}
	return err
}

// signalForwarder returns nil: the leader is the program.
func (*confined) signalForwarder() func(syscall.Signal) error { return nil }

// programStatus returns the status of the leader, which is the program.
func (*confined) programStatus(status syscall.WaitStatus) syscall.WaitStatus { return status }
