//go:build !linux

package process

import (
	"os"

	"execserver/internal/sys"
)

// inputPipe makes a pipe to a child: it reads from r, and we write to w.
func inputPipe() (r, w *os.File, err error) { return sys.Pipe() }

// outputPipe makes a pipe from a child: we read from r, and it writes to w.
func outputPipe() (r, w *os.File, err error) { return sys.Pipe() }

// openNull opens the device that has no input.
func openNull() (*os.File, error) { return sys.OpenFile(os.DevNull, os.O_RDONLY, 0) }
