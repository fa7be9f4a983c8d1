package sys

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrorText returns "no such file or directory (os error 2)" for the errno inside err. It
// returns err's own text if there is no errno.
func ErrorText(err error) string {
	e, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("%s (os error %d)", e.Error(), int(e))
}

// Error is an error with the text that ErrorText returns for it.
type Error struct{ err error }

// WrapError gives err the text of its errno, and drops the context of packages net or os,
// because the caller adds its own. errors.Is still works. WrapError returns an error without
// errno unchanged.
func WrapError(err error) error {
	if _, ok := errors.AsType[syscall.Errno](err); !ok {
		return err
	}
	return &Error{err}
}

func (e *Error) Error() string { return ErrorText(e.err) }

func (e *Error) Unwrap() error { return e.err }
