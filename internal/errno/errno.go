// Package errno writes errors of the operating system as clients of this protocol receive
// them: in Go's words, with the number.
package errno

import (
	"errors"
	"fmt"
	"syscall"
)

// Text returns "no such file or directory (os error 2)" for the errno inside err. It
// returns err's own text if there is no errno.
func Text(err error) string {
	e, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("%s (os error %d)", e.Error(), int(e))
}

// Error is an error with the text that Text returns for it.
type Error struct{ err error }

// Wrap gives err the text of its errno, and drops the context of packages net or os,
// because the caller adds its own. errors.Is still works. Wrap returns an error without
// errno unchanged.
func Wrap(err error) error {
	if _, ok := errors.AsType[syscall.Errno](err); !ok {
		return err
	}
	return &Error{err}
}

func (e *Error) Error() string { return Text(e.err) }

func (e *Error) Unwrap() error { return e.err }
