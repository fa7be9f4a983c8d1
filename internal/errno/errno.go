// Package errno gives errors of the operating system the texts that clients of this
// protocol know: the wording of the released server's C library, and the number.
package errno

import (
	"errors"
	"fmt"
	"syscall"
)

// Text returns "No such file or directory (os error 2)" for the errno inside err. It
// returns err's own text if there is no errno.
func Text(err error) string {
	e, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err.Error()
	}
	text, ok := texts[e]
	if !ok {
		text = e.Error()
	}
	return fmt.Sprintf("%s (os error %d)", text, int(e))
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
