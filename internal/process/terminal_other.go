//go:build !linux

package process

import (
	"errors"
	"os"
	"runtime"

	"execserver/protocol"
)

// Terminals says whether processes can have a terminal here.
const Terminals = false

var errNoTerminals = errors.New("terminals are not supported on " + runtime.GOOS + " yet; start the process with tty false")

func openTerminal(protocol.TerminalSize) (master, slave *os.File, err error) {
	return nil, nil, errNoTerminals
}

func resize(*os.File, protocol.TerminalSize) error { return errNoTerminals }

func sizeOf(*os.File) (protocol.TerminalSize, error) { return protocol.TerminalSize{}, errNoTerminals }

func foreground(*os.File) (group int, err error) { return 0, errNoTerminals }
